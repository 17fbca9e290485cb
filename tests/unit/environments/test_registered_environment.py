"""The documented example environment with a spec and with a generator."""

import json
import random
import sys
from pathlib import Path

import gymnasium
import pytest
from typer.testing import CliRunner

from hgpo_rllib.cli.main import app
from hgpo_rllib.config import load_config
from hgpo_rllib.environments import find_environment
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.agents import agent_overrides
from hgpo_rllib.warmstart import prepare
from hgpo_rllib.warmstart.demonstrations import demonstrate
from tests.unit.environments.test_own_environment import blocks
from tests.unit.environments.test_own_environment import folder as folder  # the files of the page

GENERATOR = """
from hgpo_rllib.environments import TaskGenerator


class Finder:
    def __init__(self, thing):
        self.plan = [f"go to {PLACES[thing]}", f"take {thing} 1 from {PLACES[thing]}"]

    def act(self, observation, admissible, last):
        return "think", self.plan[0] if self.plan[0] in admissible else self.plan[1]

    def perturb(self, admissible, rng):
        return rng.choice(admissible)

    def is_worth_learning(self, info):
        return info["won"]


class LostTasks(TaskGenerator):
    name, recipe, function_words = "lost-tasks", (), "a the"

    def data_settings(self, config):
        return {"version": 1}

    demonstration_settings = data_settings

    def make_data(self, config, path, on_progress):
        path.mkdir(parents=True, exist_ok=True)

    def make_sample(self, config, path):
        path.mkdir(parents=True)

    def make_demonstration_data(self, config, path, on_progress):
        return ["0", "1"]

    def expert_factory(self, config):
        return lambda info, rng: Finder(info["task_type"])


LostSpec.generator = LostTasks()
"""


@pytest.fixture
def registered(folder: Path) -> Path:
    """Return the folder, with the page's spec appended to the environment's module."""
    file = folder / "my_env.py"
    file.write_text(f"{file.read_text()}\n{blocks('python')[1]}")
    return folder


def hgpo(*arguments: str) -> str:
    """Run a command in this process and return its standard output."""
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_registered_environment_is_evaluated(registered: Path) -> None:
    """Split, step limit and oracle come from the spec, not from the command line."""
    hgpo("evaluate", "--env", "my_env:Lost-v0", "--agent", "oracle", "--output", "out")
    summary = json.loads((registered / "out/summary.json").read_text())
    env = summary["protocol"]["env"]
    assert (env["split"], env["max_steps"]) == ("test", 8)
    assert summary["results"]["all"]["success_rate"]["mean"] == 1
    played = [json.loads(line) for line in (registered / "out/episodes.jsonl").open()]
    assert len(played) == 20
    assert {episode["game"].partition("/")[0] for episode in played} == {"test"}
    assert {len(episode["steps"]) for episode in played} <= {1, 2}


def test_without_a_spec_it_is_evaluated_at_random(folder: Path) -> None:
    """An environment without a spec can be evaluated, but not with an oracle."""
    command = ("evaluate", "--env", "my_env:Lost-v0", "--split", "test", "--seeds", "1")
    hgpo(*command, "--agent", "random", "--output", "out", "env.max_steps=2")
    assert json.loads((folder / "out/summary.json").read_text())["results"]["all"]["episodes"] == 20
    with pytest.raises(ConfigError, match="--agent oracle: for my_env:Lost-v0 choose hgpo, "):
        hgpo(*command, "--agent", "oracle", "--output", "none")
    assert not (folder / "none").exists()


def test_prompts_of_agents_are_those_of_the_spec(registered: Path) -> None:
    """The spec has a prompt for `vanilla` and none for `react`."""
    vanilla = agent_overrides("vanilla", "my_env:Lost-v0", False)
    assert vanilla == [
        "agent.prompt=my_prompt.jinja",
        "agent.memory_length=0",
        "agent.context=window",
        "agent.subgoals=False",
    ]
    with pytest.raises(
        ConfigError, match=r"--agent react: there are no prompts for my_env:Lost-v0"
    ):
        agent_overrides("react", "my_env:Lost-v0", False)


def test_a_registered_generator_makes_data_and_demonstrations(registered: Path) -> None:
    """`hgpo train --dry-run` needs no model with the generator, and asks for one without it."""
    with pytest.raises(ConfigError, match=r"model\.model_path: there is no pocket model"):
        hgpo("train", "my_run.yaml", "--dry-run")
    sys.modules.pop("my_env")
    file = registered / "my_env.py"
    file.write_text(f"{file.read_text()}\n{GENERATOR}")
    assert "env_id: my_env:Lost-v0" in hgpo("train", "my_run.yaml", "--dry-run")
    config = load_config(registered / "my_run.yaml", [])
    path = prepare.make_data(config, lambda done, total: None)
    assert path.is_dir()
    assert path.name.startswith("lost-tasks-")
    env = gymnasium.make(config.env.env_id, split="train", data=str(path), max_steps=8)
    expert = find_environment(config.env.env_id).require_generator().expert_factory(config)
    examples = demonstrate(env, 0, expert, config.agent, 0.0, random.Random(0))
    assert examples[-1][1].startswith("<think>think</think><action>take ")
