"""Rows of metrics.jsonl and evaluation.jsonl, and counts by task."""

from dataclasses import replace

import pytest

from hgpo_rllib.iteration import IterationResult
from hgpo_rllib.rollout.held_out import count_by_task, summarize_trajectories
from hgpo_rllib.rollout.scoring import score
from hgpo_rllib.run.metrics import evaluation_rows, iteration_metrics
from tests.unit.rollout.episodes import SETTINGS, group


def test_metrics_of_episodes() -> None:
    """Metrics match a manual count for three episodes, of which the first is won."""
    result = IterationResult(
        scored=score(group(), SETTINGS),
        statistics={"kl": float("nan"), "entropy": 0.5},
        seconds={"rollout_s": 4.0},
        stale_rate=0.25,
        failures={"env_errors": 1},
    )
    assert iteration_metrics(result) == {
        "episodes": 3,
        "env_steps": 6,
        "success_rate": pytest.approx(1 / 3),
        "equal_return_rate": 0.0,
        "return_mean": pytest.approx(10 / 3),
        "episode_length": 2.0,
        "invalid_rate": pytest.approx(2 / 6),
        "inadmissible_rate": pytest.approx(2 / 6),
        "truncated_prompt_rate": pytest.approx(2 / 6),
        "truncated_response_rate": pytest.approx(1 / 6),
        "request_s": pytest.approx(1 / 6),
        "engine_s": pytest.approx(0.8 / 6),
        "env_s": pytest.approx(0.5 / 6),
        "tokens_generated": 10,
        "env_errors": 1,
        "stale_rate": 0.25,
        "entropy": 0.5,
        "kl": None,  # JSON has no NaN
        "rollout_s": 4.0,
        "tokens_per_s": 2.5,
    }


def test_rows_of_an_evaluation() -> None:
    """There is one row per split, in order, with counts by task if there are any."""
    of_type = {"success_rate": 0.5, "standard_error": float("nan")}
    splits = {"dev": {"success_rate": 0.5, "by_task_type": {"pick": of_type}}, "all": {"n": 2}}
    same = {"iteration": 3, "temperature": 0.25, "evaluation_s": 1.5}
    rows = evaluation_rows({"env_runners": splits}, {"dev": [(7, 2, 1)]}, 3, 0.25, 1.5)
    none = of_type | {"standard_error": None}  # JSON has no NaN
    assert rows == [
        same | {"split": "all", "n": 2.0},
        same
        | {"split": "dev", "success_rate": 0.5, "by_task_type": {"pick": none}}
        | {"by_task": [(7, 2, 1)]},
    ]


def test_counts_by_task() -> None:
    """Episodes are counted by task: a group's name ends with its place among the played tasks."""
    won, lost, _ = group()
    played = [
        replace(lost, group="0/dev/0"),
        replace(lost, group="0/dev/1"),
        replace(won, group="0/dev/2"),
    ]
    assert count_by_task(played, [7, 2, 7]) == [(2, 1, 0), (7, 2, 1)]
    assert count_by_task(played[1:], [7, 2, 7]) == [(2, 1, 0), (7, 1, 1)]


def test_games_of_two_splits_are_different() -> None:
    """Two games of the same name, each of another split, count as two in the standard error."""
    won, lost, _ = group()
    both = [replace(won, group="0/a.test/0"), replace(lost, group="0/b.test/0")]
    assert summarize_trajectories(both)["standard_error"] == pytest.approx(0.5)
