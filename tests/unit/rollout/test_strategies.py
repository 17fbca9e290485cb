"""Groups whose members share strategies: requests, records and credit."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from hgpo_rllib.agent import AgentFactory, TokenRenderer, response_seed, with_strategies
from hgpo_rllib.learner.batching import signal_columns, token_batch, token_columns
from hgpo_rllib.policy_server.types import Generation, Prompt, RequestFailedError
from hgpo_rllib.rollout import runner
from hgpo_rllib.rollout.policy_agent import PolicyAgent
from hgpo_rllib.rollout.scoring import score
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.algorithm import AlgorithmSettings
from hgpo_rllib.warmstart.tokenizer import train_tokenizer
from tests.unit.rollout.harness import GOOD, RolloutHarness

ROLES = AlgorithmSettings(estimator="grpo", role_estimators={"strategy": "strata"})


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["at 1 of 2, wait. count Strategy: Task:"] * 20, [], 320)


class StrategyHarness(RolloutHarness):
    """A rollout in which two members share a strategy, whose text has the seed of its request."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        super().__init__(tokenizer)
        settings = AgentSettings(prompt="strategy_compact")
        self.strategy_renderer = TokenRenderer(tokenizer, settings)
        self.policy.respond = self.respond

    def agent_factory(self) -> AgentFactory:
        playing = partial(PolicyAgent, self.policy, self.renderer)
        writing = partial(PolicyAgent, self.policy, self.strategy_renderer)
        return with_strategies(playing, writing, executions=2)

    def respond(self, prompt: Prompt) -> Generation:
        writes = self.text(prompt).endswith("Strategy:")
        return self.response(f"plan\n{prompt.seed}" if writes else GOOD)

    def text(self, prompt: Prompt) -> str:
        return self.tokenizer.decode(prompt.token_ids)

    def strategies_asked(self) -> list[Prompt]:
        return [prompt for prompt in self.policy.asked if "plan" not in self.text(prompt)]


@pytest.fixture
def harness(tokenizer: PreTrainedTokenizerFast) -> Iterator[StrategyHarness]:
    harness = StrategyHarness(tokenizer)
    yield harness
    harness.thread.close()


def test_members_share_strategies(harness: StrategyHarness) -> None:
    """Each strategy is sampled once, before the first action, and shown in all prompts."""
    played = harness.play([2, 3], size=6)
    assert len(harness.strategies_asked()) == 6
    assert [len(trajectory) for trajectory in played] == [2] * 6 + [3] * 6
    for trajectory in played:
        first, *others = trajectory.turns
        (strategy,) = first.preceding
        seed = response_seed(f"{trajectory.group}/strategy/{trajectory.member // 2}", 0)
        assert (strategy.role, strategy.completion) == ("strategy", f"plan\n{seed}")
        assert strategy.is_valid
        assert not any(turn.preceding for turn in others)
        for turn in trajectory.turns:
            shown = harness.tokenizer.decode(turn.prompt_ids)
            assert shown.startswith(f"Strategy: plan {seed}\nTask: count\n")
            assert (turn.role, turn.action) == ("agent", "wait")


def test_a_strategy_that_failed_is_written_again(harness: StrategyHarness) -> None:
    """The next attempts of the members sample a failed strategy again."""
    failing = iter([True])

    def respond(prompt: Prompt) -> Generation:
        if next(failing, False):
            raise RequestFailedError("no")
        return harness.respond(prompt)

    harness.policy.respond = respond
    played = harness.play([2], size=4)
    assert len(played) == 4
    assert len(harness.strategies_asked()) == 3
    assert harness.failures["request_errors"] in (1, 2)  # one for each waiting member
    written = Counter(trajectory.turns[0].preceding[0].completion for trajectory in played)
    assert sorted(written.values()) == [2, 2]


def test_a_strategy_that_was_cut_is_invalid(harness: StrategyHarness) -> None:
    """A strategy has no action, and is valid unless it reached the token limit."""

    def respond(prompt: Prompt) -> Generation:
        writes = harness.text(prompt).endswith("Strategy:")
        return harness.response("plan", "length") if writes else harness.response(GOOD)

    harness.policy.respond = respond
    for trajectory in harness.play([1], size=2):
        (turn,) = trajectory.turns
        (strategy,) = turn.preceding
        assert (strategy.is_valid, strategy.action, turn.is_valid) == (False, "", True)


def test_credit(harness: StrategyHarness) -> None:
    """Strategies are compared with one another, and actions within one strategy."""
    played = harness.play([1], size=6)
    returns = [0.0, 4.0, 3.0, 3.0, 9.0, 7.0]  # best of each pair: 4, 3, 9
    for trajectory, value in zip(played, returns, strict=True):
        trajectory.steps[:] = [replace(step, reward=value) for step in trajectory.steps]
    settings = ROLES.model_copy(update={"normalize": "mean"})
    columns = token_columns(played) | signal_columns(score(played, settings))
    batch = token_batch(columns, np.arange(12), torch.device("cpu"))
    by_row = dict(zip(batch["row"].tolist(), batch["advantage"].tolist(), strict=True))
    expected = [value - 16 / 3 for value in (4, 4, 3, 3, 9, 9)]
    np.testing.assert_allclose([by_row[row] for row in range(0, 12, 2)], expected, rtol=1e-6)
    assert [by_row[row] for row in range(1, 12, 2)] == [-2.0, 2.0, 0.0, 0.0, 1.0, -1.0]


def test_hgpo_inside_a_strategy(harness: StrategyHarness) -> None:
    """Steps under different strategies are not compared, even in the same state."""
    played = harness.play([2], size=4)
    levels = score(played, ROLES.model_copy(update={"estimator": "hgpo"})).levels
    assert all(level.size.tolist() == [2] * 8 for level in levels)


def test_the_members_of_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run divides the members of a group evenly among its strategies."""
    monkeypatch.setattr(runner, "with_strategies", lambda *arguments: arguments[2])
    own: Any = object.__new__(runner.HGPOEnvRunner)
    own.config = SimpleNamespace(group_size=12, strategies=3)
    own.renderer = own._strategy_renderer = own.grammars = object()
    assert own.agent_factory(object()) == 4
