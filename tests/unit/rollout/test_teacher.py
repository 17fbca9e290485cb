"""Prompts of the teacher: the text that is added to the prompts of the responses."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from env_wrappers.errors import DataError
from hgpo_rllib.environments import OraclePlan
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.rollout.teacher import outcome_texts, plan_texts, teacher_prompts
from hgpo_rllib.rollout.trajectory import Step, Trajectory
from tests.unit.agent.test_conversations import CHATML, make_renderer, play, tokenizer
from tests.unit.rollout.episodes import group, info

__all__ = ["tokenizer"]  # a fixture


def test_the_outcome_is_told() -> None:
    """The text has the outcome and the last observation, which no prompt of the episode has."""
    won, truncated, lost = outcome_texts(group())
    told = "\n\nKnown only afterwards: the episode ended"
    assert won == f"{told} with success, and its last observation was: mug"
    assert truncated == lost == f"{told} without success, and its last observation was: desk"


def test_the_plan_is_told() -> None:
    """The plan is computed once per group; without a plan, no text is added."""
    asked = []

    def find_plan(start: dict) -> OraclePlan:
        asked.append(start["goal"])
        return OraclePlan(["go to desk 1", "look"] if len(asked) == 1 else [], "search[mug]")

    texts = plan_texts([*group("a"), *group("b")], find_plan)
    assert len(asked) == 2
    assert texts[:3] == 3 * [
        "\n\nKnown only afterwards: from its start, the task can be solved by these actions: "
        "go to desk 1; look"
    ]
    assert texts[3:] == 3 * [""]


def test_a_game_without_a_plan_adds_no_text(caplog: pytest.LogCaptureFixture) -> None:
    def find_plan(start: dict) -> OraclePlan:
        raise DataError("no recorded walkthrough")

    assert plan_texts(group(), find_plan) == 3 * [""]
    assert caplog.messages == ["no plan for the teacher: no recorded walkthrough"]


@pytest.mark.parametrize("template", [None, CHATML])
def test_the_text_ends_the_last_message(
    tokenizer: PreTrainedTokenizerFast, template: str | None
) -> None:
    """Each trajectory's text ends the last message of its prompts, with or without template."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = template or tokenizer.chat_template
    renderer = make_renderer(tokenizer)
    trajectories = []
    for steps in (2, 1):
        turns = play(renderer, steps, "<action>look</action>").turns
        played = [Step(turn, "desk", 0.0, False, False, info("x"), 0.0) for turn in turns]
        trajectories.append(Trajectory(info("x"), played))
    texts = [" a mug 2", " take"]
    prompts = teacher_prompts(trajectories, texts, renderer)
    for prompt, (turn, text) in zip(
        prompts,
        [(turn, text) for t, text in zip(trajectories, texts, strict=True) for turn in t.turns],
        strict=True,
    ):
        assert prompt.dtype == np.int32
        before = tokenizer.decode(turn.prompt_ids)
        end = "<eos>\n<eos_start>assistant\n" if template else ""
        assert tokenizer.decode(prompt) == before.removesuffix(end) + text + end
        cut = len(turn.prompt_ids) - len(renderer.encode(end))
        np.testing.assert_array_equal(prompt[:cut], turn.prompt_ids[:cut])


@pytest.mark.parametrize("prompt", [[5, 6], list(range(5, 90))])
def test_other_prompts_are_refused(tokenizer: PreTrainedTokenizerFast, prompt: list[int]) -> None:
    """A prompt that was not rendered with the chat template raises a one-line error."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = CHATML
    (trajectory, *_) = group()
    step = trajectory.steps[0]
    turn = replace(step.turn, prompt_ids=np.array(prompt, np.int32))
    with pytest.raises(ConfigError, match="a prompt does not end as the model's chat template"):
        teacher_prompts(
            [Trajectory(trajectory.info, [replace(step, turn=turn)])],
            ["text"],
            make_renderer(tokenizer),
        )
