"""Mixtures: the tasks and settings of each environment, and one pocket model for all."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.errors import DataError
from env_wrappers.mixture import task_counts
from hgpo_rllib.agent import TextRenderer
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.environments import find_environment, with_absolute_paths
from hgpo_rllib.environments.checks import make_environment
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.request import make_request
from hgpo_rllib.metrics import find_metric
from hgpo_rllib.models import load_tokenizer
from hgpo_rllib.reporting.console import TrainingConsole
from hgpo_rllib.rollout.tasks import TaskOrder
from hgpo_rllib.run.directory import RunDirectory
from hgpo_rllib.run.inputs import check_files
from hgpo_rllib.run.metrics import environment_metrics, rollout_metrics
from hgpo_rllib.run.trainer import prepare_inputs
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.warmstart import prepare
from tests.unit.env_wrappers.textcraft.textcraft_data import write_recipes
from tests.unit.rollout.episodes import group

RUN_FILE = Path("tuned_examples/mixture_pocket.yaml")
MIXED = "env.options.environments"
MIXTURE = find_environment("hgpo/Mixture-v0")


@pytest.fixture
def settings(tmp_path: Path, generated_games: Path) -> list[str]:
    """Return overrides of the run file that select few games and recipes."""
    return [
        f"{MIXED}.alfworld.data={generated_games}",
        f"{MIXED}.textcraft.data={write_recipes(tmp_path / 'recipes')}",
        f"cache={tmp_path / 'cache'}",
        f"output={tmp_path / 'runs'}",
    ]


@pytest.fixture
def config(settings: list[str]) -> RunConfig:
    return load_config(RUN_FILE, settings)


@given(st.lists(st.tuples(st.integers(1, 500), st.sampled_from([0.1, 0.5, 1, 2, 3])), min_size=1))
def test_tasks_are_in_proportion_to_weights(parts: list[tuple[int, float]]) -> None:
    """Counts follow the weights and cover all tasks; at least one environment repeats none."""
    sizes, weights = [size for size, _ in parts], [weight for _, weight in parts]
    counts = task_counts(sizes, weights)
    assert all(count >= size for count, size in zip(counts, sizes, strict=True))
    assert any(count == size for count, size in zip(counts, sizes, strict=True))
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count / weight - counts[0] / weights[0]) <= 1 / min(weights)


def test_weights_that_differ_too_much() -> None:
    with pytest.raises(DataError, match=r"weights 1, 1e-06 differ too much for 3, 5 tasks"):
        task_counts([3, 5], [1, 1e-6])


@pytest.mark.parametrize("weight", [1, 3])
def test_an_epoch_plays_all_tasks_by_weight(config: RunConfig, settings: Any, weight: int) -> None:
    """An epoch plays every task, and environments in proportion to their weights."""
    config = load_config(RUN_FILE, [*settings, f"{MIXED}.textcraft.weight={weight}"])
    env = make_environment(config.env, "train")
    sizes = {
        name: part.get_wrapper_attr("num_tasks")
        for name, part in env.get_wrapper_attr("environments").items()
    }
    count, find = env.get_wrapper_attr("num_tasks"), env.get_wrapper_attr("find")
    played = [find(task) for task in TaskOrder(count, seed=1).first(count)]
    drawn = Counter(name for name, _ in played)
    assert drawn["textcraft"] == weight * drawn["alfworld"]
    assert set(played) == {(name, task) for name, size in sizes.items() for task in range(size)}


def test_a_task_is_that_of_its_environment(config: RunConfig) -> None:
    """Observation and info are the environment's; `info` also has its name and its prompt."""
    env = make_environment(config.env, "train")
    parts = MIXTURE.parts(config)
    seen = set()
    for task in (*range(env.get_wrapper_attr("num_tasks")), 10**6):
        observation, info = env.reset(seed=task)
        name, own = env.get_wrapper_attr("find")(task % env.get_wrapper_attr("num_tasks"))
        alone = make_environment(parts[name].env, "train")
        assert info.pop("mixture") == {
            "environment": name,
            "prompt": parts[name].agent.prompt,
            "memory_length": parts[name].agent.memory_length,
        }
        assert (observation, info) == alone.reset(seed=own)
        assert env.step("inventory")[:4] == alone.step("inventory")[:4]
        seen.add(name)
    assert seen == {"alfworld", "textcraft"}
    assert env.reset()[1]["mixture"]["environment"] in seen
    env.close()


def test_infos_are_the_callers(config: RunConfig) -> None:
    """A caller that changes an info changes no other one."""
    env = make_environment(config.env, "train")
    env.reset(seed=0)[1]["mixture"].clear()
    first = env.step("inventory")[4]["mixture"]
    assert first["environment"]
    first.clear()
    assert env.step("inventory")[4]["mixture"]["environment"]


def test_a_split_of_one_environment(config: RunConfig) -> None:
    env = make_environment(config.env, "textcraft.dev")
    alone = make_environment(MIXTURE.parts(config)["textcraft"].env, "dev")
    assert list(env.get_wrapper_attr("environments")) == ["textcraft"]
    count = alone.get_wrapper_attr("num_tasks")
    assert env.get_wrapper_attr("num_tasks") == count
    for task in range(count):
        assert env.reset(seed=task)[0] == alone.reset(seed=task)[0]
    with pytest.raises(DataError, match="unknown environment 'webshop': choose alfworld, text"):
        make_environment(config.env, "webshop.test")


def test_step_limits(config: RunConfig) -> None:
    """A task has its environment's step limit, and at most that of the mixture."""
    env = gymnasium.make("hgpo/Mixture-v0", **config.env.options, max_steps=50)
    assert (
        env.reset(seed=env.get_wrapper_attr("num_tasks") - 1)[1]["mixture"]["environment"]
        == "textcraft"
    )
    assert [env.step("wait")[3] for _ in range(15)] == [False] * 14 + [True]
    short = gymnasium.make("hgpo/Mixture-v0", **config.env.options, max_steps=2)
    short.reset(seed=short.get_wrapper_attr("num_tasks") - 1)
    assert [short.step("wait")[3] for _ in range(2)] == [False, True]


def test_settings_of_the_parts(config: RunConfig) -> None:
    """Settings that an environment does not have are those of the mixture."""
    parts = MIXTURE.parts(config)
    assert list(parts) == ["alfworld", "textcraft"]
    assert [part.env.max_steps for part in parts.values()] == [20, 15]
    assert [part.agent.memory_length for part in parts.values()] == [2, 30]
    assert parts["alfworld"].evaluation.splits == ["valid_seen", "valid_unseen"]
    assert parts["textcraft"].evaluation.splits == ["dev", "test"]
    assert parts["textcraft"].warm_start == config.warm_start
    check_files(config)


def test_games_of_a_mixture(config: RunConfig) -> None:
    """Each task's name begins with its environment, and the hash depends on the data."""
    env = make_environment(config.env, "train")
    games = MIXTURE.games(env, config.env, "train")
    assert len(games.names) == env.get_wrapper_attr("num_tasks")
    assert {name.partition("/")[0] for name in games.names} == {"alfworld", "textcraft"}
    assert games.data_hash
    one = MIXTURE.games(make_environment(config.env, "textcraft.dev"), config.env, "textcraft.dev")
    assert one.data_hash != games.data_hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (f"{MIXED}={{}}", f"{MIXED}: give a mixture's environments by name"),
        ("env.options.task_types=[]", "no other options of it"),
        (f"{MIXED}.alfworld.weights=1", f"unknown config key {MIXED}.alfworld.weights; available"),
        (f"{MIXED}.alfworld.weight=0", f"{MIXED}.alfworld.weight: input should be greater than 0"),
        (f"{MIXED}.alfworld.max_steps=21", r"max_steps=21 is above env.max_steps=20"),
        (f"{MIXED}.a/b.env_id=x", f"{MIXED}.a/b: a name has letters, digits"),
        ("env.data=games", f"env.data: a mixture has none: set {MIXED}.NAME.data"),
        ("evaluation.splits=[test]", "evaluation.splits: 'test' is of no environment"),
        ("evaluation.splits=[textcraft.seen]", "textcraft: unknown split 'seen'"),
        (f"{MIXED}.textcraft.options.x=1", "textcraft: unknown option env.options.x"),
        (f"{MIXED}.textcraft.prompt=nix", "textcraft: agent.prompt: no prompt template 'nix'"),
        (f"{MIXED}.textcraft.env_id=hgpo/None-v0", "textcraft: model.model_path: there is no"),
    ],
)
def test_errors_name_the_key(settings: list[str], change: str, message: str) -> None:
    with pytest.raises((ConfigError, DataError)) as error:
        check_files(load_config(RUN_FILE, [*settings, change]))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_task_has_a_renderer_of_its_own() -> None:
    """The renderer has the prompt and the memory length that the task's info names."""
    renderer = TextRenderer(AgentSettings(prompt="alfworld_compact", memory_length=2))
    own = renderer.for_task({"mixture": {"prompt": "textcraft_compact", "memory_length": 30}})
    assert (own.template.name, own.memory_length) == ("textcraft_compact.jinja", 30)
    assert own is renderer.for_task(
        {"mixture": {"prompt": "textcraft_compact", "memory_length": 30}}
    )
    assert renderer.for_task({"goal": "win", "prompt": "of its own environment"}) is renderer
    forgetful = renderer.for_task({"mixture": {"prompt": None, "memory_length": 0}})
    assert (forgetful.template, forgetful.memory_length) == (renderer.template, 0)


def test_absolute_paths(settings: list[str]) -> None:
    """Relative paths become absolute, since trials and actors run in other folders."""
    prompt = f"{MIXED}.textcraft.prompt=mine.jinja"
    config = load_config(RUN_FILE, [*settings, prompt])
    relative = MIXTURE.with_data(config, lambda part: "games" if part.env.max_steps == 20 else None)
    parts = MIXTURE.parts(with_absolute_paths(relative))
    assert parts["alfworld"].env.data == str(Path("games").absolute())
    assert parts["textcraft"].env.data is None
    assert parts["textcraft"].agent.prompt == str(Path("mine.jinja").absolute())
    assert parts["alfworld"].agent.prompt == "alfworld_compact"


def test_the_pocket_model_depends_on_all_environments(settings: list[str]) -> None:
    """The model's path depends on all environments' prompts, but not on their weights."""

    def path(*changes: str) -> Path:
        return prepare.model_path(load_config(RUN_FILE, [*settings, *changes]))

    others = [path(f"{MIXED}.{name}.prompt=alfworld_full") for name in ("alfworld", "textcraft")]
    assert len({path(), *others}) == 3
    assert path(f"{MIXED}.textcraft.weight=2") == path()


def test_one_model_and_tokenizer(settings: list[str], tmp_path: Path) -> None:
    """One model and one tokenizer are made from demonstrations of all environments."""
    small = ("games=2", "demonstrations=1", "exercise_steps=0", "optimizer_steps=2", "layers=1")
    changes = [f"warm_start.{change}" for change in small]
    config = load_config(RUN_FILE, [*settings, *changes, "games.rooms=[bedroom]"])
    prepared = prepare_inputs(config, TrainingConsole((tmp_path / "log").open("w")))
    assert prepared.env == config.env  # the data are given
    path = str(prepared.model.model_path)
    assert path == str(prepare.model_path(config))
    tokenizer = load_tokenizer(path)
    for word in ("bed", "planks"):
        assert len(tokenizer(f" {word}", add_special_tokens=False)["input_ids"]) <= 3


def test_evaluating_one_environment(config: RunConfig) -> None:
    """The request has the split and the settings of that environment."""
    run = RunDirectory.create(config).path

    def request(split: str | None) -> Any:
        return make_request([str(run)], split=split, agent="random")

    made = request("textcraft.test")
    assert (made.split, made.config.env) == ("test", MIXTURE.parts(config)["textcraft"].env)
    assert made.config.agent.prompt == "textcraft_compact"
    assert request(None).split == "valid_seen"  # the first of evaluation.splits
    with pytest.raises(ConfigError, match=r"'train' is not a split of one environment: give NAME"):
        request("train")


def test_metrics_of_each_environment() -> None:
    """Metrics cover one environment's episodes; a run of one environment has none of them."""
    played = [
        replace(t, info=t.info | {"mixture": {"environment": "household"}}) for t in group()[:2]
    ]
    crafted = [
        replace(t, info=t.info | {"mixture": {"environment": "crafting"}}) for t in group()[2:]
    ]
    found = environment_metrics([*played, *crafted])
    assert {name.partition("/")[2] for name in found} == {"household", "crafting"}
    for name, part in (("household", played), ("crafting", crafted)):
        assert found[f"success_rate/{name}"] == rollout_metrics(part)["success_rate"]
        assert found[f"episodes/{name}"] == len(part)
    assert found["success_rate/household"] != found["success_rate/crafting"]
    assert environment_metrics(group()) == {}
    for name in found:
        assert find_metric(name)[1] == {"environment": name.partition("/")[2]}
