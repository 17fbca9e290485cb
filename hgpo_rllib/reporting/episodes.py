"""Choose the episodes that a report contains. The page inserts texts as text, never as markup."""

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
"""Maximum length of all texts in a report; its iterations get equal shares."""
MAX_GROUPS = 6
"""Maximum groups per iteration."""
ITERATIONS = 3
"""Iterations of a single run: the first, a middle one and the latest."""
MAX_RUNS = 8
"""Maximum runs: the first of each experiment, or one per seed; latest iteration only."""
GAME_PARTS = 4
TEXTS = ("anchor", "prompt", "completion", "action", "weight_version")
NUMBERS = ("reward", "step_return", "advantage", "response_tokens")
FULL_COLOR = 0.95
"""Quantile of the sizes of non-zero advantages from which colors are saturated."""


def number(row: Row, key: str) -> float | None:
    """Return the finite number under `key`, or None, which JSON can represent."""
    value = numbers.number(row, key)
    return None if math.isnan(value) else value


def pack_episodes(experiments: Experiments) -> list[dict[str, Any]]:
    """Return the data for a report's episode browser: one item per iteration that is shown.

    Groups with both successes and failures come first in each iteration, then those with the
    largest spread of advantages. Members are added up to the character limit; each iteration shows
    at least one episode.
    """
    chosen = list(_chosen(experiments))
    sets = []
    for label, run, iteration in chosen:
        rows = read_episodes(run.episode_files[iteration], RUN_EPISODES)
        episodes = [row for row in rows if row.get("steps")]
        if episodes:
            sets.append(_set(label, iteration, episodes, MAX_CHARACTERS // len(chosen)))
    return sets


def _chosen(experiments: Experiments) -> Iterator[tuple[str, Run, int]]:
    """Yield label, run and iteration of the episodes to show."""
    (first, *others) = experiments.values()
    if others:
        runs = [(name, runs.members[0]) for name, runs in experiments.items()]
    else:
        runs = [(f"seed {run.config.get('seed')}", run) for run in first.members]
    if len(runs) > 1:
        shown = [(label, run) for label, run in runs[:MAX_RUNS] if run.episode_files]
        yield from ((label, run, max(run.episode_files)) for label, run in shown)
        return
    run, recorded = first.members[0], list(first.members[0].episode_files)
    places = {round(i * (len(recorded) - 1) / (ITERATIONS - 1)) for i in range(ITERATIONS)}
    for place in sorted(places) if recorded else []:
        yield "", run, recorded[place]


def _set(label: str, iteration: int, episodes: Sequence[Row], limit: int) -> dict[str, Any]:
    by_group: dict[str, list[Row]] = {}
    # Workers finish in arbitrary order, which must not affect the selection.
    for episode in sorted(episodes, key=lambda e: (str(e.get("game")), _member(e))):
        by_group.setdefault(str(episode.get("group")), []).append(episode)
    groups: list[dict[str, Any]] = []
    characters = 0
    for members in sorted(by_group.values(), key=_interest, reverse=True)[:MAX_GROUPS]:
        shown: list[dict[str, Any]] = []
        for member in members:
            if characters < limit or not (groups or shown):
                shown.append(_episode(member))
                texts = (step[name] for step in shown[-1]["steps"] for name in TEXTS)
                characters += sum(map(len, texts))
        if shown:
            groups.append(_group(members, shown))
    sizes = [
        abs(step["advantage"])
        for group in groups
        for member in group["members"]
        for step in member["steps"]
        if step["advantage"]
    ]
    return {
        "label": label,
        "iteration": iteration,
        "split": str(episodes[0].get("split") or ""),
        # Advantage of full color: a quantile, as one outlier would make all others pale.
        "scale": float(np.quantile(sizes, FULL_COLOR, method="lower")) if sizes else 0.0,
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


def _group(members: Sequence[Row], shown: Sequence[dict[str, Any]]) -> dict[str, Any]:
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


def _episode(member: Row) -> dict[str, Any]:
    return {
        "name": str(member.get("member")),
        "success": bool(member.get("success")),
        "return": number(member, "episode_return"),
        "steps": [_step(time, step) for time, step in enumerate(member["steps"])],
    }


def _step(index: int, step: Row) -> dict[str, Any]:
    texts = {name: str(step.get(name) or "") for name in TEXTS}
    flags = {
        "invalid": step.get("is_valid") is False,
        "inadmissible": bool(step.get("inadmissible")),
        "prompt cut": bool(step.get("prompt_truncated")),
        "response cut": bool(step.get("response_truncated")),
    }
    return {
        **texts,
        **{name: number(step, name) for name in NUMBERS},
        "time": step.get("time", index),
        "thought": (find_thought(texts["completion"]) or "").strip(),
        "flags": [name for name, is_set in flags.items() if is_set],
        "sizes": step.get("group_sizes") or [],  # absent in older files
    }
