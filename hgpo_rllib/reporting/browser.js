"use strict";
// The episode browser. Texts of models go in as text nodes, never as markup.
(() => {
  const sets = JSON.parse(document.getElementById("episode-data").textContent);
  const root = document.getElementById("browser");
  const state = { set: sets.length - 1, group: 0, member: 0 };

  const node = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "onclick" || name === "onchange") made[name] = value;
      else if (value !== "" && value !== false) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  };
  const signed = (x, digits = 2) =>
    x === null ? "n/a" : (x > 0 ? "+" : x < 0 ? "−" : "") + Math.abs(x).toFixed(digits);
  const plain = (x) => (x === null ? "n/a" : x.toFixed(2).replace("-", "−"));
  const color = (advantage, scale) => {
    if (!advantage || !scale) return "var(--none)";
    // Never so pale that the sign cannot be seen.
    const share = 15 + 85 * Math.min(1, Math.abs(advantage) / scale);
    return `color-mix(in oklab, var(--${advantage < 0 ? "down" : "up"}) ${share}%, var(--none))`;
  };
  const end = (episode) =>
    node("span", { class: episode.success ? "tag good" : "tag" },
      episode.success ? "success" : "failure");

  const choice = (name, key, labels) => {
    const options = labels.map((label, index) =>
      node("option", { value: index, selected: index === state[key] }, label));
    const open = (event) => {
      state[key] = Number(event.target.value);
      if (key === "set") state.group = 0;
      if (key !== "member") state.member = 0;
      show();
    };
    return node("label", {}, name, node("select", { id: `choose-${key}`, onchange: open }, ...options));
  };

  const stepCard = (step, scale) => {
    const facts = [
      ["reward", plain(step.reward)],
      ["return", plain(step.step_return)],
      ...(step.sizes.length ? [["group sizes", step.sizes.join(" · ")]] : []),
    ];
    const list = node("dl", {},
      node("dt", { class: "big" }, "advantage"),
      node("dd", { class: "big" }, signed(step.advantage)));
    for (const [name, value] of facts) list.append(node("dt", {}, name), node("dd", {}, value));
    const asked = step.response_tokens === null ? "" : `${step.response_tokens} tokens`;
    const weights = step.weight_version ? `weights ${step.weight_version}` : "";
    const body = node("div", {}, node("div", { class: "seen" }, step.anchor));
    if (step.thought) body.append(node("div", { class: "thought" }, step.thought));
    body.append(
      node("div", { class: "action" }, `> ${step.action} `,
        ...step.flags.flatMap((flag) => [node("span", { class: "tag" }, flag), " "])),
      node("details", {}, node("summary", {}, "prompt and completion"),
        node("pre", {}, step.prompt), node("pre", {}, step.completion),
        node("span", { class: "soft" }, [asked, weights].filter(Boolean).join(", "))));
    const card = node("div", { class: "step", id: `step-${step.time}` },
      node("div", { class: "soft" }, `step ${step.time}`), body, list);
    card.style.borderLeftColor = color(step.advantage, scale);
    return card;
  };

  const map = (group, scale) => {
    const grid = node("div", { class: "map" });
    group.members.forEach((member, index) => {
      const open = (time) => () => {
        state.member = index;
        show();
        if (time !== null) document.getElementById(`step-${time}`).scrollIntoView({ block: "center" });
      };
      const cells = member.steps.map((step, place) => {
        const won = member.success && place === member.steps.length - 1;
        const cell = node("button", {
          class: won ? "end" : "",
          title: `step ${step.time}: ${step.action}, advantage ${signed(step.advantage)}`,
          "aria-label": `${member.name} step ${step.time}`,
          onclick: open(step.time),
        });
        cell.style.background = color(step.advantage, scale);
        return cell;
      });
      const name = node("button", { class: index === state.member ? "open" : "", onclick: open(null) },
        member.name.replace("_", " "));
      grid.append(name, end(member), node("div", { class: "cells" }, ...cells));
    });
    return grid;
  };

  const show = () => {
    const set = sets[state.set];
    const group = set.groups[state.group];
    const member = group.members[state.member];
    const held = set.groups.reduce((sum, each) => sum + each.members.length, 0);
    const missing = group.size - group.members.length;
    root.replaceChildren(
      node("div", { class: "choose" },
        choice(new Set(sets.map((each) => each.label)).size > 1 ? "run, iteration" : "iteration", "set",
          sets.map((each) => (each.label ? `${each.label}, iteration ` : "") + each.iteration)),
        choice("group", "group",
          set.groups.map((each, index) => `${index + 1}: ${each.won} of ${each.size} succeed`)),
        choice("episode", "member",
          group.members.map((each) =>
            `${each.name.replace("_", " ")}: ${each.success ? "success" : "failure"}, ` +
            `${each.steps.length} steps`))),
      node("div", { class: "soft" },
        `${held} of ${set.total} episodes (${set.groups.length} of ${set.total_groups} groups) of `
        + `iteration ${set.iteration}, ${set.split}, are in this file.`
        + (missing ? ` Of this group ${missing} of ${group.size} are left out.` : "")),
      node("h3", {}, group.goal || group.game),
      node("div", { class: "soft" }, [group.task_type, group.game].filter(Boolean).join(" · ")),
      map(group, set.scale),
      node("div", { class: "legend" }, "advantage", node("span", {}, `≤ ${signed(-set.scale)}`),
        node("i"), node("span", {}, `≥ ${signed(set.scale)}`)),
      node("h3", {}, `${member.name.replace("_", " ")} `, end(member),
        node("span", { class: "soft" }, ` ${member.steps.length} steps, return ${plain(member.return)}`)),
      ...member.steps.map((step) => stepCard(step, set.scale)));
    history.replaceState(null, "", `#episode-${state.set}-${state.group}-${state.member}`);
  };

  const asked = /^#episode-(\d+)-(\d+)-(\d+)$/.exec(location.hash);
  if (asked) {
    const [set, group, member] = asked.slice(1).map(Number);
    if (sets[set]?.groups[group]?.members[member]) Object.assign(state, { set, group, member });
  }
  show();
  if (asked) document.getElementById("episodes").scrollIntoView();
})();
