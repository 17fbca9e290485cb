"""Episodes with sub-goals: prompts, spans, and the advantage of each token."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from hgpo_rllib.advantages.segments import SegmentValues, hiper
from hgpo_rllib.agent import TokenRenderer
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.learner.batching import signal_columns, token_columns
from hgpo_rllib.policy_server.types import Prompt
from hgpo_rllib.rollout.scoring import score
from hgpo_rllib.rollout.trajectory import Trajectory
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.algorithm import AlgorithmSettings
from hgpo_rllib.warmstart.tokenizer import train_tokenizer
from tests.unit.rollout.harness import RolloutHarness

WORDS = ("SWITCH", "KEEP", "KEEP", "SWITCH", "KEEP")  # by step; the segments have 3 and 2 steps
SETTINGS = AlgorithmSettings(estimator="hiper", gamma=0.5, gae_lambda=0.7, normalize="mean")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["at 1 of 2, wait. count <switch>SWITCH</switch> plan"] * 20, [], 340)


@pytest.fixture
def played(tokenizer: PreTrainedTokenizerFast) -> Iterator[list[Trajectory]]:
    """Yield a group of two members with five steps each."""
    harness = RolloutHarness(tokenizer)
    settings = AgentSettings(prompt="alfworld_compact", subgoals=True, memory_length=2)
    harness.renderer = TokenRenderer(tokenizer, settings)

    def respond(prompt: Prompt) -> object:
        step = int(tokenizer.decode(prompt.token_ids).partition("Step ")[2].partition("\n")[0]) - 1
        subgoal = f"<subgoal>plan {step}</subgoal>"
        return harness.response(f"<switch>{WORDS[step]}</switch>{subgoal}<action>wait</action>")

    harness.policy.respond = respond
    yield harness.play([5], size=2)
    harness.thread.close()


def test_prompts_and_spans(played: list[Trajectory], tokenizer: PreTrainedTokenizerFast) -> None:
    """Prompts show the current sub-goal, and only steps that set a new one have its span."""
    for trajectory in played:
        for step, turn in enumerate(trajectory.turns):
            shown = "None" if step == 0 else "plan 0" if step < 4 else "plan 3"
            assert tokenizer.decode(turn.prompt_ids).startswith(f"Subgoal: {shown}\n")
            assert turn.is_valid
            assert turn.action == "wait"
            begins = step in (0, 3)
            assert [span.role for span in turn.spans] == [
                "switch",
                *(["subgoal"] if begins else []),
                "action",
            ]


def test_advantages_of_blocks_and_targets(played: list[Trajectory]) -> None:
    """Each block gets its own advantage, and values have targets only where they are read."""
    columns = token_columns(played)
    rows, width = columns["response_ids"].shape
    value = np.random.default_rng(0).standard_normal((rows, 1 + width))
    value[:, 1:][np.arange(width) >= columns["response_length"].numpy()[:, None]] = np.nan
    scored = score(played, SETTINGS, value)
    turns = [turn for trajectory in played for turn in trajectory.turns]
    begins = np.array([word == "SWITCH" for word in WORDS] * 2)
    first = np.array([next(s.start for s in t.spans if s.role == "action") for t in turns])
    read = SegmentValues(value[np.arange(rows), 1 + first], value[:, 0], value[:, 1])
    expected, target = hiper(scored.steps, begins, read, SETTINGS.estimator_settings())
    signals = signal_columns(scored)
    by_role = {"action": expected.low, "subgoal": expected.high, "switch": expected.switch}
    for row, turn in enumerate(turns):
        tokens = np.zeros(width)
        for span in turn.spans:
            tokens[span.start : span.end] += by_role[span.role][row]
        np.testing.assert_allclose(signals["advantage"][row], tokens, atol=1e-6)
    known = np.full(value.shape, np.nan)
    known[begins, 0] = target.high[begins]
    known[:, 1] = target.switch
    known[np.arange(rows), 1 + first] = target.low
    np.testing.assert_allclose(signals["value_target"], known, atol=1e-6)


def test_the_penalty_of_keeping(played: list[Trajectory]) -> None:
    """Each of the three steps that keep the sub-goal pays a fifth of the penalty."""
    without = score(played, SETTINGS.model_copy(update={"estimator": "reinforce"}))
    penalty = {"estimator": "reinforce", "keep_penalty": 2.0}
    scored = score(played, SETTINGS.model_copy(update=penalty))
    assert without.steps.trajectory_return is not None
    assert scored.steps.trajectory_return is not None
    less = without.steps.trajectory_return - scored.steps.trajectory_return
    np.testing.assert_allclose(less, 3 * 0.4)
    last = scored.steps.step_return - without.steps.step_return
    np.testing.assert_allclose(last[[3, 4]], [-0.2, -0.4])


@pytest.mark.parametrize("word", ["SWITCH", "KEEP"])
def test_a_response_without_a_subgoal(played: list[Trajectory], word: str) -> None:
    """The switch word alone decides whether a segment begins and whether keeping costs."""
    step = played[0].steps[1]
    spans = tuple(span for span in step.turn.spans if span.role != "subgoal")
    text = f"<switch>{word}</switch><action>wait</action>"
    played[0].steps[1] = replace(step, turn=replace(step.turn, completion=text, spans=spans))
    settings = SETTINGS.model_copy(update={"keep_penalty": 2.0})
    rows, width = token_columns(played)["response_ids"].shape
    scored = score(played, settings, np.zeros((rows, 1 + width)))
    begins = word == "SWITCH"
    assert bool(signal_columns(scored)["value_target"][1, 0].isfinite()) == begins
    assert scored.steps.trajectory_return is not None
    lost = scored.steps.trajectory_return[0] - scored.steps.trajectory_return[5]
    assert lost == pytest.approx(0.4 if begins else 0.0)


def test_a_first_step_that_keeps_pays_nothing(played: list[Trajectory]) -> None:
    """The first step pays no penalty, since there is no sub-goal to keep."""
    step = played[0].steps[0]
    text = step.turn.completion.replace("SWITCH", "KEEP")
    played[0].steps[0] = replace(step, turn=replace(step.turn, completion=text))
    settings = SETTINGS.model_copy(update={"estimator": "reinforce", "keep_penalty": 2.0})
    returns = score(played, settings).steps.trajectory_return
    assert returns is not None
    assert returns[0] == pytest.approx(returns[5])


def test_a_response_without_an_action(played: list[Trajectory]) -> None:
    """All tokens get the action's advantage, and the action's value is read at the second token."""
    turn = played[0].steps[1].turn
    whole = replace(turn.spans[-1], start=0, end=len(turn.response_ids))
    played[0].steps[1] = replace(played[0].steps[1], turn=replace(turn, spans=(whole,)))
    columns = token_columns(played)
    rows, width = columns["response_ids"].shape
    scored = score(played, SETTINGS, np.zeros((rows, 1 + width)))
    signals = signal_columns(scored)
    advantage = signals["advantage"][1, : len(turn.response_ids)]
    assert (advantage == advantage[0]).all()
    assert signals["value_target"][1].isfinite().nonzero().flatten().tolist() == [1, 2]


def test_a_response_of_one_token(played: list[Trajectory]) -> None:
    """A response of a single token trains the switch's value and no action's value."""
    step = played[0].steps[1]
    turn = step.turn
    whole = (replace(turn.spans[-1], start=0, end=1),)
    short = {"response_ids": turn.response_ids[:1], "behavior_logp": turn.behavior_logp[:1]}
    played[0].steps[1] = replace(step, turn=replace(turn, spans=whole, **short))
    rows, width = token_columns(played)["response_ids"].shape
    values = np.zeros((rows, 1 + width))
    targets = []
    for value_of_actions in (0.0, 5.0):
        values[:, 2:] = value_of_actions
        target = signal_columns(score(played, SETTINGS, values))["value_target"][1]
        assert target.isfinite().nonzero().flatten().tolist() == [1]
        targets.append(float(target[1]))
    assert targets[0] == targets[1]


def test_responses_without_blocks_are_refused(played: list[Trajectory]) -> None:
    step = played[0].steps[0]
    played[0].steps[0] = replace(step, turn=replace(step.turn, spans=()))
    with pytest.raises(ConfigError, match="estimator hiper: a response has no spans"):
        score(played, SETTINGS, np.zeros((10, 99)))
