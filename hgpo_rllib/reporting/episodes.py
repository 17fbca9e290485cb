"""Choose the few episodes worth reading and lay out their steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hgpo_rllib.reporting.run_data import Row
from hgpo_rllib.reporting.stats import decimal, number


def pick_episodes(episodes: list[Row]) -> list[dict[str, Any]]:
    """A success, a failure, and the episode whose advantages differ most; fewer if there are."""
    # The order in which workers finished says nothing, so the choice must not depend on it.
    pool = sorted(
        (episode for episode in episodes if episode.get("steps")),
        key=lambda e: (str(e.get("game")), str(e.get("group")), str(e.get("member"))),
    )
    widest = max((episode for episode in pool if _spread(episode)), key=_spread, default=None)
    chosen: list[tuple[str, Row]] = []
    for title, wanted in (("A short success", True), ("A short failure", False)):
        episode = _shortest(e for e in pool if e is not widest and bool(e["success"]) is wanted)
        if episode is not None:
            chosen.append((title, episode))
    if widest is not None:
        chosen.append(("The widest range of advantages within one episode", widest))
    scale = max((abs(a) for _, episode in chosen for a in _advantages(episode)), default=0.0)
    return [_episode(title, episode, scale) for title, episode in chosen]


def _shortest(pool: Iterable[Row]) -> Row | None:
    return min(pool, key=lambda episode: len(episode["steps"]), default=None)


def _advantages(episode: Row) -> list[float]:
    values = (number(step, "advantage") for step in episode["steps"])
    return [value for value in values if value is not None]


def _spread(episode: Row) -> float:
    values = _advantages(episode)
    return max(values) - min(values) if values else 0.0


def _episode(title: str, episode: Row, scale: float) -> dict[str, Any]:
    return {
        "title": title,
        "success": bool(episode["success"]),
        "task_type": str(episode.get("task_type") or "").replace("_", " "),
        "game": str(episode.get("game") or ""),
        "iteration": episode.get("iteration"),
        "split": episode.get("split"),
        "group": episode.get("group"),
        "member": episode.get("member"),
        "episode_return": decimal(number(episode, "episode_return")),
        "steps": [_step(index, step, scale) for index, step in enumerate(episode["steps"])],
    }


def _step(index: int, step: Row, scale: float) -> dict[str, Any]:
    advantage = number(step, "advantage")
    return {
        "time": step.get("time", index),
        "anchor": str(step.get("anchor") or ""),
        "prompt": str(step.get("prompt") or ""),
        "completion": str(step.get("completion") or ""),
        "action": str(step.get("action") or ""),
        "invalid": step.get("is_valid") is False,
        "inadmissible": bool(step.get("inadmissible")),
        "reward": decimal(number(step, "reward")),
        "step_return": decimal(number(step, "step_return")),
        "advantage": decimal(advantage),
        "negative": (advantage or 0.0) < 0,
        # Half of the bar's width is for each sign; one scale for all episodes shown.
        "width": 50 * abs(advantage or 0.0) / scale if scale else 0.0,
        "response_tokens": step.get("response_tokens"),
        "weight_version": step.get("weight_version"),
    }
