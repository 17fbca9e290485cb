"""The parts of `hgpo bench scale` and `hgpo bench publish` that need no Ray."""

import asyncio
import time

import numpy as np
import pytest

from hgpo_rllib.bench.growth_plot import growth_curves
from hgpo_rllib.bench.publishing import GB, store_bytes
from hgpo_rllib.bench.replay import ReplayEngine
from hgpo_rllib.bench.scale import growth, repeated
from hgpo_rllib.policy_server.types import Generation, Prompt, PublishedWeights, Sampling
from hgpo_rllib.rollout.trajectory import Trajectory


def rollout(episodes: int, cpu_ms: float, kib: float = 10.0) -> dict[str, float]:
    """A row of the table of rollouts, of episodes of ten steps."""
    return {
        "runners": 0,
        "episodes": episodes,
        "steps": 10 * episodes,
        "cpu_ms_per_step": cpu_ms,
        "orchestration_ms": cpu_ms / 2,
        "kib_per_episode": kib,
    }


def test_growth_is_the_exponent_of_the_total_cost() -> None:
    """Equal costs per step are linear growth; costs in proportion to the number, quadratic."""
    linear = growth([rollout(n, 1.0) for n in (64, 512, 4096)])
    assert linear == pytest.approx(dict.fromkeys(linear, 1.0))
    quadratic = growth([rollout(n, n / 64) for n in (64, 512, 4096)])
    assert quadratic["cpu_exponent"] == pytest.approx(2.0)
    assert quadratic["orchestration_exponent"] == pytest.approx(2.0)
    assert quadratic["memory_exponent"] == pytest.approx(1.0)


def test_trajectories_are_repeated_in_new_groups() -> None:
    """Steps of a copy are not compared with those of another."""
    played = [Trajectory({}, [None] * 3, group="a"), Trajectory({}, [None] * 4, group="a")]
    copies = repeated(played, 15)
    assert [len(copy) for copy in copies] == [3, 4, 3, 4, 3]
    assert [copy.group for copy in copies] == ["a/0", "a/0", "a/1", "a/1", "a/2"]


def test_the_engine_returns_recorded_responses_after_their_latency() -> None:
    """Those that the seed selects, under the version of the weights that it got."""
    recorded = [
        Generation(np.array([n], np.int32), np.zeros(1, np.float32), "", "stop", 0.02 * n)
        for n in (1, 2)
    ]

    async def ask() -> tuple[list[Generation], float]:
        engine, sampling = ReplayEngine(recorded), Sampling(1.0, 4, ())
        async with engine.receive(PublishedWeights("float32", {})) as load:
            await load("b:3")
        start = time.perf_counter()
        answers = [await engine.generate(Prompt([1], seed), sampling) for seed in (0, 1, 3)]
        return answers, time.perf_counter() - start

    answers, seconds = asyncio.run(ask())
    assert [answer.token_ids.tolist() for answer in answers] == [[1], [2], [2]]
    assert {answer.version for answer in answers} == {"b:3"}
    assert seconds >= 0.1


def test_a_curve_per_number_of_runners() -> None:
    """Two panels: time per step, memory of all episodes."""
    rows = [rollout(n, 1.0) | {"runners": runners} for runners in (0, 2) for n in (64, 512)]
    time_panel, memory = growth_curves(rows).axes
    assert len(time_panel.lines) == len(memory.lines) == 2
    assert time_panel.lines[1].get_xydata().tolist() == [[64, 0.5], [512, 0.5]]
    assert memory.lines[0].get_ydata().tolist() == [64 * 10 / 1024, 512 * 10 / 1024]


def test_a_store_holds_the_weights_that_it_is_made_for() -> None:
    assert store_bytes(3) > 3 * GB
