"""Training on an environment of Gymnasium: its settings and its prompt."""

import pytest

from hgpo_rllib.agent.memory import Turn
from hgpo_rllib.agent.renderer import TextRenderer
from hgpo_rllib.config import load_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.run.inputs import check_files
from hgpo_rllib.settings.agent import AgentSettings

LAKE = [
    "env.env_id=hgpo/Gymnasium-v0",
    "env.options={name: FrozenLake-v1, goal: Reach G., actions: [left, down, right, up]}",
    "evaluation.splits=[test]",
    "agent.prompt=any_text",
    "model.model_path=org/model",
]


def test_settings() -> None:
    check_files(load_config(None, LAKE))
    for option, message in (
        ("env.options.name=Lake-v1", "Environment `Lake` doesn't exist"),
        ("env.options.actions=[left]", "FrozenLake-v1 has 4 actions"),
        ("env.options.word=x", "it cannot be made with"),
        ("env.options={name: Blackjack-v1, actions: [stick, hit]}", "cannot be played in text"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_files(load_config(None, [*LAKE, option]))


def test_the_prompt() -> None:
    """An observation that equals the goal is not repeated."""
    renderer = TextRenderer(AgentSettings(prompt="any_text", memory_length=2))
    first = renderer.message("rules", "rules", ["up", "down"], 1, history=[])
    assert first == (
        "rules\n\nYour actions: up, down\n"
        "First think it through step by step, inside <think> </think> tags.\n"
        "Then give exactly one action, inside <action> </action> tags."
    )
    history = [Turn("rules", "up"), Turn("a wall", "down")]
    third = renderer.message("rules", "a door", ["up"], 3, history=history)
    assert third.startswith(
        "rules\n\nYou did: up\n\nYou saw:\na wall\nYou did: down\n\nYou see now:\na door\n\n"
    )
