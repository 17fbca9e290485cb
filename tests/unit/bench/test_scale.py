"""The parts of `hgpo bench scale` and `hgpo bench publish` that need no Ray."""

import asyncio
import gc
import time
from types import SimpleNamespace

import numpy as np
import pytest

from hgpo_rllib.bench.publishing import GB, store_bytes
from hgpo_rllib.bench.replay import ReplayEngine
from hgpo_rllib.bench.scale import PLOTTED, MeasuredRunner, figure, repeated
from hgpo_rllib.policy_server.types import Generation, Prompt, PublishedWeights, Sampling
from hgpo_rllib.rollout.trajectory import Trajectory


def test_cleaning_up_is_no_work_of_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU time of a collection does not count as that of the episodes after it."""

    def busy() -> None:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass

    runner = object.__new__(MeasuredRunner)
    runner.prompt_s = runner.clean_s = 0.0
    monkeypatch.setattr(runner, "_loop", SimpleNamespace(call=lambda *_: 0.0), raising=False)
    monkeypatch.setattr(runner, "_env_thread", SimpleNamespace(call=None), raising=False)
    monkeypatch.setattr(gc, "collect", busy)
    first, second = runner.usage(), runner.usage()
    assert second["cpu_s"] - first["cpu_s"] < 0.1


def test_trajectories_are_repeated_in_new_groups() -> None:
    """Each copy has its own group, so steps of different copies are not compared."""
    played = [Trajectory({}, [None] * 3, group="a"), Trajectory({}, [None] * 4, group="a")]
    copies = repeated(played, 15)
    assert [len(copy) for copy in copies] == [3, 4, 3, 4, 3]
    assert [copy.group for copy in copies] == ["a/0", "a/0", "a/1", "a/1", "a/2"]


def test_the_engine_returns_recorded_responses_after_their_latency() -> None:
    """The seed selects the response, which has the version of the loaded weights."""
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


def test_a_store_holds_the_weights_that_it_is_made_for() -> None:
    assert store_bytes(3) > 3 * GB


@pytest.mark.parametrize("key", PLOTTED)
@pytest.mark.parametrize("runners", [0, 2])
def test_the_figure_shows_all_numbers(key: str, runners: int) -> None:
    """Every number is plotted, so changing one changes the figure."""
    measured = {"cpu_ms_per_step": 2.0, "orchestration_ms": 1.0, "steps_per_s": 90.0}
    rows = [{"runners": r, "episodes": e, **measured} for r in (0, 2) for e in (64, 512)]
    before = figure(rows)
    next(row for row in rows if row["runners"] == runners)[key] *= 3
    assert figure(rows) != before
