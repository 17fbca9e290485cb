"""Choose the episodes that a report holds, and pack them for its browser.

What models write is repeated often (a prompt holds what was seen before), so every text is kept
once and named by its number. The page puts them in as text, never as markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hgpo_rllib.agent.parsing import find_thought
from hgpo_rllib.jsonl import RUN_EPISODES, Row
from hgpo_rllib.reporting import numbers
from hgpo_rllib.reporting.panels import Experiments
from hgpo_rllib.results import Run
from hgpo_rllib.results.frames import read_episodes

MAX_CHARACTERS = 3_000_000
"""Of all texts in a report."""
MAX_GROUPS = 6
"""Of each iteration shown."""
ITERATIONS = 3
"""Shown of a single run: the first, one in the middle, and the newest."""
MAX_RUNS = 8
"""Of which episodes are shown: the first of each experiment, or each seed; newest iteration."""
GAME_PARTS = 4
FULL_COLOUR = 0.95
"""Share of the advantages other than 0 that are told apart by their colour."""


class Texts(dict[str, int]):
    """The number of each text, up to `limit` characters of all together."""

    limit = 0

    def add(self, text: str) -> int:
        """The number of a text."""
        return self.setdefault(text, len(self))

    @property
    def characters(self) -> int:
        """Of all texts."""
        return sum(map(len, self))

    @property
    def full(self) -> bool:
        """Whether no more should be added."""
        return self.characters >= self.limit


def number(row: Row, key: str) -> float | None:
    """The finite number under `key`, or None, which is JSON."""
    value = numbers.number(row, key)
    return None if math.isnan(value) else value


def pack_episodes(experiments: Experiments) -> dict[str, Any] | None:
    """What the browser of a report shows, or None without episodes.

    Of every iteration the groups come first that have both successes and failures, then those
    whose advantages differ most. Members are added until the texts are full; the limit is shared
    between the iterations, and every iteration shows one episode at least.
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
    """Label, run and iteration of what is shown."""
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
    # The order in which workers finished says nothing, so what is shown must not depend on it.
    for episode in sorted(episodes, key=lambda e: (str(e.get("game")), _member(e))):
        by_group.setdefault(str(episode.get("group")), []).append(episode)
    groups: list[dict[str, Any]] = []
    for members in sorted(by_group.values(), key=_interest, reverse=True)[:MAX_GROUPS]:
        if texts.full and groups:
            break
        groups.append(_group(members, texts, keep_one=not groups))
    shown = (
        step["advantage"]
        for group in groups
        for member in group["members"]
        for step in member["steps"]
    )
    return {
        "label": label,
        "run": run.path.name,
        "iteration": iteration,
        "split": str(episodes[0].get("split") or ""),
        "scale": _scale(shown),
        "total": len(episodes),
        "total_groups": len(by_group),
        "groups": groups,
    }


def _scale(advantages: Iterable[float]) -> float:
    """The size from which on a colour is full: one outlier would make all others pale."""
    sizes = [abs(value) for value in advantages if value]
    return float(np.quantile(sizes, FULL_COLOUR, method="lower")) if sizes else 0.0


def _member(episode: Row) -> tuple[int, str]:
    name = str(episode.get("member"))
    return len(name), name  # member_10 after member_9


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
        shown.append(_episode(member, texts))
    first = members[0]
    return {
        "goal": str(first.get("goal") or ""),
        "game": _tail(str(first.get("game") or "")),
        "task_type": str(first.get("task_type") or "").replace("_", " "),
        "size": len(members),
        "won": sum(bool(member.get("success")) for member in members),
        "members": shown,
    }


def _tail(game: str) -> str:
    """The end of a path, which is what tells games apart."""
    parts = game.split("/")
    return game if len(parts) <= GAME_PARTS else "/".join(["…", *parts[-GAME_PARTS:]])


def _episode(episode: Row, texts: Texts) -> dict[str, Any]:
    return {
        "name": str(episode.get("member")),
        "success": bool(episode.get("success")),
        "return": number(episode, "episode_return"),
        "steps": [_step(index, step, texts) for index, step in enumerate(episode["steps"])],
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
        "sizes": _sizes(step.get("group_sizes")),
        "tokens": number(step, "response_tokens"),
        "weights": str(step.get("weight_version", "")),
    }


def _sizes(value: object) -> list[int]:
    """Of the groups of a step, by depth; files of earlier versions do not have them."""
    return [size for size in value if isinstance(size, int)] if isinstance(value, list) else []
