"""The rollout bench: its lock-step driver on a small environment, and what it prints."""

import asyncio
from typing import Any

import pytest
from rich.console import Console

from hgpo_rllib.bench.lock_step import play_in_lock_step
from hgpo_rllib.bench.rollout import Episodes, Requests
from hgpo_rllib.bench.weights import WeightUpdate
from hgpo_rllib.cli.bench_output import with_median
from hgpo_rllib.cli.bench_training import rollout_tables
from tests.unit.rollout.test_group import GOOD, Table, table, tokenizer

__all__ = ["table", "tokenizer"]  # fixtures


def test_lock_step_asks_for_all_until_the_last_one_ends(table: Table) -> None:
    """And counts what each did before its end."""
    envs = [table.make() for _ in range(3)]
    tasks = [2, 5, 3]
    work = play_in_lock_step(envs, tasks, "key", table.renderer, table.policy)
    assert asyncio.run(work) == sum(tasks)
    assert len(table.policy.asked) == 3 * 5
    assert [env.actions for env in envs] == [["wait"] * task for task in tasks]
    seeds = [prompt.seed for prompt in table.policy.asked]
    assert len(set(seeds)) == len(seeds)
    shown = table.tokenizer.decode(table.policy.asked[-3].token_ids)
    assert "at 2 of 2" in shown, "what is over is asked again about its last observation"
    assert table.tokenizer.decode(table.response(GOOD).token_ids).startswith(GOOD)


def requests(seconds: float) -> Requests:
    return Requests(
        concurrency=64,
        prompts=200,
        bare_tokens=2000,
        bare_seconds=0.8,
        tokens=2000,
        seconds=seconds,
        latency_s=0.15,
        engine_s=0.12,
    )


EPISODES = Episodes(
    episodes=16,
    steps=300,
    longest=50,
    seconds=1.0,
    tokens=3000,
    request_s=0.2,
    engine_s=0.15,
    env_s=0.01,
    lock_steps=280,
    lock_seconds=2.0,
)


def test_ratios() -> None:
    assert requests(1.0).ratio == pytest.approx(0.8)
    assert requests(1.0).overhead_ms == pytest.approx(1.0)
    assert EPISODES.ratio == pytest.approx(300 / 140)


def test_the_median_is_a_turn_that_took_place() -> None:
    rows = [requests(seconds) for seconds in (2.0, 1.0, 4.0, 3.0)]
    named: list[tuple[str, Any]] = with_median(rows, "ratio")
    assert [name for name, _ in named] == ["1", "2", "3", "4", "median"]
    assert named[-1][1].seconds == 3.0


def test_tables() -> None:
    console = Console(width=116)
    with console.capture() as capture:
        for part in rollout_tables([requests(1.0)], [EPISODES], [WeightUpdate(0.1, 1.2, 3e-6)]):
            console.print(part)
    rows = [line.split("│") for line in capture.get().splitlines() if "median" in line]
    cells = [[cell.strip() for cell in row[2:-1]] for row in rows]
    assert cells == [
        ["2,000", "2,500", "2,000", "0.80", "1.00", "150", "120"],
        ["300", "50", "300", "140", "2.14", "200", "150", "10.0"],
        ["0.10", "1.20", "3e-06"],
    ]
