"""`hgpo/Client-v0`: tasks that clients of the gateway play."""

from typing import Any

import pytest

from env_wrappers.client import ClientEnv
from env_wrappers.errors import DataError
from hgpo_rllib.config import load_config
from hgpo_rllib.environments import find_environment
from hgpo_rllib.environments.checks import make_environment
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.run.inputs import check_files

TASKS = {"train": 3, "eval": 2}
SETTINGS = [
    "env.env_id=hgpo/Client-v0",
    "env.options={name: words, tasks: {train: 3, eval: 2}}",
    "evaluation.splits=[eval]",
    "model.model_path=org/model",
]


def test_tasks() -> None:
    """Every seed selects a task of the split."""
    env = ClientEnv("words", TASKS, split="eval")
    assert env.num_tasks == 2
    infos = [env.reset(seed=seed)[1] for seed in (0, 1, 2)]
    assert [info["game"] for info in infos] == ["eval/0", "eval/1", "eval/0"]
    assert {info["task_type"] for info in infos} == {"words"}
    assert env.reset()[1]["game"] in ("eval/0", "eval/1")
    with pytest.raises(DataError, match=r"set rollout\.gateway_port"):
        env.step("anything")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], r"only clients of the gateway play hgpo/Client-v0: set rollout\.gateway_port"),
        (["evaluation.splits=[test]"], "tasks has no split 'test', only train, eval: add it"),
        (["env.options.tasks.eval=0"], r"tasks\.eval must be at least 1, not 0"),
        (["env.data=games"], "the client has: leave env.data out"),
        (["env.options.tasks=3"], r"env\.options\.tasks: input should be a valid dictionary"),
        (["env.options.task=3"], r"unknown option env\.options\.task; available: name, tasks"),
    ],
)
def test_wrong_settings(options: list[str], message: str) -> None:
    port = ["rollout.gateway_port=8100"] if options else []
    with pytest.raises((ConfigError, DataError), match=message):
        check_files(load_config(None, [*SETTINGS, *port, *options]))


def test_games() -> None:
    config = load_config(None, [*SETTINGS, "rollout.gateway_port=8100"])
    check_files(config)
    spec: Any = find_environment(config.env.env_id)
    env = make_environment(config.env, "eval")
    assert spec.games(env, config.env, "eval").names == ("eval/0", "eval/1")
