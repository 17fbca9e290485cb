"""Choose the episodes that a report contains, and pack them for the browser.

Texts repeat often (a prompt contains earlier observations), so each is stored once and referenced
by number. The page inserts them as text, never as markup.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hgpo_rllib.agent.parsing import find_thought
from hgpo_rllib.jsonl import RUN_EPISODES, Row
from hgpo_rllib.reporting import numbers
from hgpo_rllib.reporting.panels import Experiments
from hgpo_rllib.results import Run
from hgpo_rllib.results.frames import read_episodes

MAX_CHARACTERS = 3_000_000
"""Maximum length of all texts in a report."""
MAX_GROUPS = 6
"""Maximum groups per iteration."""
ITERATIONS = 3
"""Iterations of a single run: the first, a middle one and the latest."""
MAX_RUNS = 8
"""Maximum runs: the first of each experiment, or one per seed; latest iteration only."""
GAME_PARTS = 4
FULL_COLOUR = 0.95
"""Quantile of the sizes of non-zero advantages from which colours are saturated."""


class Texts(dict[str, int]):
    """Map texts to their numbers, up to `limit` characters in total."""

    limit = characters = 0

    def add(self, text: str) -> int:
        """Return the number of a text, adding it if necessary."""
        if text not in self:
            self[text] = len(self)
            self.characters += len(text)
        return self[text]

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self.characters >= self.limit


def number(row: Row, key: str) -> float | None:
    """Return the finite number under `key`, or None, which JSON can represent."""
    value = numbers.number(row, key)
    return None if math.isnan(value) else value


def pack_episodes(experiments: Experiments) -> dict[str, Any] | None:
    """Return the data for a report's episode browser, or None without episodes.

    Groups with both successes and failures come first in each iteration, then those with the
    largest spread of advantages. Members are added up to the character limit, which iterations
    share; each iteration shows at least one episode.
    """
    chosen = list(_chosen(experiments))
    texts = Texts()
    sets = []
    for left, (label, run, iteration) in zip(range(len(chosen), 0, -1), chosen, strict=True):
        texts.limit = texts.characters + (MAX_CHARACTERS - texts.characters) // left
        rows = read_episodes(run.episode_files[iteration], RUN_EPISODES)
        episodes = [row for row in rows if row.get("steps")]
        if episodes:
            sets.append(_set(label, run, iteration, episodes, texts))
    return {"texts": list(texts), "sets": sets} if sets else None


def _chosen(experiments: Experiments) -> Iterator[tuple[str, Run, int]]:
    """Yield label, run and iteration of the episodes to show."""
    (first, *others) = experiments.values()
    if not others and len(first.members) == 1:
        (run,) = first.members
        recorded = list(run.episode_files)
        places = {round(i * (len(recorded) - 1) / (ITERATIONS - 1)) for i in range(ITERATIONS)}
        for place in sorted(places) if recorded else []:
            yield "", run, recorded[place]
        return
    runs = (
        [(name, runs.members[0]) for name, runs in experiments.items()]
        if others
        else [(f"seed {run.config.get('seed')}", run) for run in first.members]
    )
    for label, run in runs[:MAX_RUNS]:
        if run.episode_files:
            yield label, run, max(run.episode_files)


def _set(
    label: str, run: Run, iteration: int, episodes: Sequence[Row], texts: Texts
) -> dict[str, Any]:
    by_group: dict[str, list[Row]] = {}
    # Workers finish in arbitrary order, which must not affect the selection.
    for episode in sorted(episodes, key=lambda e: (str(e.get("game")), _member(e))):
        by_group.setdefault(str(episode.get("group")), []).append(episode)
    groups: list[dict[str, Any]] = []
    for members in sorted(by_group.values(), key=_interest, reverse=True)[:MAX_GROUPS]:
        if texts.full and groups:
            break
        groups.append(_group(members, texts, keep_one=not groups))
    sizes = [
        abs(step["advantage"])
        for group in groups
        for member in group["members"]
        for step in member["steps"]
        if step["advantage"]
    ]
    return {
        "label": label,
        "run": run.path.name,
        "iteration": iteration,
        "split": str(episodes[0].get("split") or ""),
        # Advantage of full colour: a quantile, since outliers would fade the rest.
        "scale": float(np.quantile(sizes, FULL_COLOUR, method="lower")) if sizes else 0.0,
        "total": len(episodes),
        "total_groups": len(by_group),
        "groups": groups,
    }


def _member(episode: Row) -> tuple[int, str]:
    name = str(episode.get("member"))
    return len(name), name  # sorts member_10 after member_9


def _interest(members: Sequence[Row]) -> tuple[bool, float, str]:
    mixed = len({bool(member.get("success")) for member in members}) > 1
    values = [
        value
        for member in members
        for step in member["steps"]
        if (value := number(step, "advantage")) is not None
    ]
    spread = max(values) - min(values) if values else 0.0
    return mixed, spread, str(members[0].get("game"))


def _group(members: Sequence[Row], texts: Texts, keep_one: bool) -> dict[str, Any]:
    shown: list[dict[str, Any]] = []
    for member in members:
        if texts.full and (shown or not keep_one):
            break
        shown.append(
            {
                "name": str(member.get("member")),
                "success": bool(member.get("success")),
                "return": number(member, "episode_return"),
                "steps": [_step(t, step, texts) for t, step in enumerate(member["steps"])],
            }
        )
    first = members[0]
    game = str(first.get("game") or "").split("/")
    return {
        "goal": str(first.get("goal") or ""),
        # The end of a path distinguishes games.
        "game": "/".join(game if len(game) <= GAME_PARTS else ["…", *game[-GAME_PARTS:]]),
        "task_type": str(first.get("task_type") or "").replace("_", " "),
        "size": len(members),
        "won": sum(bool(member.get("success")) for member in members),
        "members": shown,
    }


def _step(index: int, step: Row, texts: Texts) -> dict[str, Any]:
    completion = str(step.get("completion") or "")
    flags = {
        "invalid": step.get("is_valid") is False,
        "inadmissible": bool(step.get("inadmissible")),
        "prompt cut": bool(step.get("prompt_truncated")),
        "response cut": bool(step.get("response_truncated")),
    }
    return {
        "time": step.get("time", index),
        "observation": texts.add(str(step.get("anchor") or "")),
        "prompt": texts.add(str(step.get("prompt") or "")),
        "completion": texts.add(completion),
        "thought": (find_thought(completion) or "").strip(),
        "action": str(step.get("action") or ""),
        "flags": [name for name, is_set in flags.items() if is_set],
        "reward": number(step, "reward"),
        "return": number(step, "step_return"),
        "advantage": number(step, "advantage"),
        "sizes": step.get("group_sizes") or [],  # absent in older files
        "tokens": number(step, "response_tokens"),
        "weights": str(step.get("weight_version", "")),
    }
