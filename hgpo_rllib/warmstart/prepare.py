"""Generate and cache the data and the pocket model that a run needs."""

import contextlib
import functools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from env_wrappers.datasets import evenly, new_directory, partial_directory
from env_wrappers.files import json_hash, sync_folder
from env_wrappers.processes import map_in_processes
from hgpo_rllib.agent.templates import load_template
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments import EnvironmentSpec, TaskGenerator, find_environment
from hgpo_rllib.environments.checks import make_environment
from hgpo_rllib.environments.spec import Example, Games, Progress
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.warmstart.cloning import clone, encode, make_model
from hgpo_rllib.warmstart.demonstrations import cached_environment, demonstrate_task
from hgpo_rllib.warmstart.tokenizer import train_tokenizer

TOKENIZER_SAMPLE = 4000  # number of examples to train the tokenizer
Demonstrations = Mapping[str, Sequence[Example]]
"""Examples by the names of `EnvironmentSpec.parts`."""
RECIPE = ("demonstrations.py", "tokenizer.py", "cloning.py")


def data_path(config: RunConfig) -> Path:
    """Return the cache path of this config's generated data."""
    generator = _data_generator(config)
    settings = generator.data_settings(config)
    return Path(config.cache) / f"{generator.name}-{json_hash(settings)[:10]}"


def make_data(config: RunConfig, on_progress: Progress) -> Path:
    """Generate the data of training and evaluation unless cached; return their path."""
    path = data_path(config)
    _data_generator(config).make_data(config, path, on_progress)
    return path


def model_path(config: RunConfig) -> Path:
    """Return the cache path of this config's pocket model; the name hashes settings and code."""
    dependencies = {name: _dependencies(part) for name, part in _spec(config).parts(config).items()}
    single = dependencies.get("")
    return Path(config.cache) / f"pocket-model-{json_hash(single or dependencies)[:10]}"


def _dependencies(config: RunConfig) -> dict[str, Any]:
    """Return all that the pocket model of one environment depends on."""
    generator = _spec(config).require_generator()
    recipe = [Path(__file__).parent / name for name in RECIPE]
    strategy = config.agent.strategy_prompt
    if generated := _spec(config).data_generator(config):
        options = generated.demonstration_options(config)
        data = generated.demonstration_settings(config)
    else:
        games, options = _train_games(config), config.env.options
        data = {"games": games.list_hash(range(len(games.names))), "hash": games.data_hash}
    return {
        "env": config.env.env_id,
        "env_options": options,
        "data": data,
        "warm_start": config.warm_start.model_dump(),
        "prompt": _template_source(config.agent.prompt),
        "strategy_prompt": strategy and _template_source(strategy),
        "subgoals": config.agent.subgoals,
        "memory_length": config.agent.memory_length,
        "max_length": config.agent.max_prompt_tokens + config.agent.max_response_tokens,
        "recipe": [path.read_text() for path in (*recipe, *generator.recipe)],
    }


def make_demonstrations(config: RunConfig, on_progress: Progress) -> Demonstrations:
    """Demonstrate tasks, for each environment of a mixture.

    They are tasks of the train split, or generated for this if the run's data are generated.
    """
    parts, path = _spec(config).parts(config), model_path(config)
    units = 2 * config.warm_start.games  # of progress: to generate and to demonstrate each game

    def demonstrate(place: int, part: RunConfig) -> list[Example]:
        start, total = place * units, len(parts) * units
        return _demonstrate(part, path, lambda done: on_progress(start + done, total))

    return {name: demonstrate(place, part) for place, (name, part) in enumerate(parts.items())}


def _demonstrate(
    config: RunConfig, path: Path, on_progress: Callable[[int], None]
) -> list[Example]:
    warm = config.warm_start
    with partial_directory(path.with_name(f"{path.name}-demonstrations")) as partial:
        if generated := _spec(config).data_generator(config):
            data = partial / "data"
            names = generated.make_demonstration_data(
                config, data, lambda n, total: on_progress(n * warm.games // total)
            )
            tasks = list(enumerate(names))
            options = {"data": str(data)} | generated.demonstration_options(config)
        else:
            games = _train_games(config)
            tasks = [(seed, games.names[seed]) for seed in evenly(len(games.names), warm.games)]
            given = {"data": config.env.data, "split": config.env.train_split}
            options = config.env.options | given
        demonstrate = functools.partial(
            demonstrate_task,
            config.env.env_id,
            json.dumps({"max_steps": warm.max_steps, **options}),
            _spec(config).require_generator().expert_factory(config),
            config.agent,
            warm,
        )
        examples: list[Example] = []
        for done, shown in enumerate(map_in_processes(demonstrate, tasks), start=1):
            examples += shown
            on_progress(warm.games + done)
        cached_environment.cache_clear()  # the data can change until the next call
        return examples


def make_model_directory(
    config: RunConfig, demonstrations: Demonstrations, on_progress: Progress
) -> Path:
    """Train tokenizer and pocket model on demonstrations; write both in HuggingFace format.

    Examples of an environment with fewer than another are repeated, so that each environment of a
    mixture has about as many.

    `on_progress` receives the number of finished optimizer steps, of exercises and examples, and of
    all.

    Raises:
        ConfigError: an environment has no demonstrations, or there are no exercises for
            `warm_start.exercise_steps`.
    """
    warm, parts = config.warm_start, _spec(config).parts(config)
    for name, examples in demonstrations.items():
        if not examples:
            raise ConfigError(
                f"warm_start.max_steps={warm.max_steps}: all demonstrations of "
                f"{parts[name].env.env_id} were discarded: raise it or warm_start.games"
            )
    most = max(map(len, demonstrations.values()))
    shown = [
        (_spec(parts[name]).require_generator(), [*examples] * round(most / len(examples)))
        for name, examples in demonstrations.items()
    ]
    rng = random.Random(warm.seed)
    exercises: list[Example] = []
    for generator, examples in shown if warm.exercise_steps else ():
        exercises += generator.exercises(examples, rng)
    if warm.exercise_steps and not exercises:
        raise ConfigError(
            f"warm_start.exercise_steps: {config.env.env_id} has no exercises with the prompt "
            f"{config.agent.prompt!r}: set it to 0"
        )
    examples = [example for generator, own in shown for example in generator.augment(own, rng)]
    torch.manual_seed(warm.seed)
    sample = examples[:: max(1, len(examples) // TOKENIZER_SAMPLE)]
    words = [word for generator, _ in shown for word in generator.function_words.split()]
    tokenizer = train_tokenizer((text for pair in sample for text in pair), words, warm.vocabulary)
    max_length = config.agent.max_prompt_tokens + config.agent.max_response_tokens
    model = make_model(tokenizer, warm.hidden_size, warm.layers, max_length)
    learn = functools.partial(
        clone, model, batch_size=warm.batch_size, prompt_loss=warm.prompt_loss, seed=warm.seed
    )
    steps, total = warm.exercise_steps, warm.exercise_steps + warm.optimizer_steps
    if exercises:
        learn(
            encode(tokenizer, exercises),
            steps,
            lr=warm.exercise_lr,
            decay=False,
            on_progress=lambda step, loss: on_progress(step, total),
        )
    learn(
        encode(tokenizer, examples),
        warm.optimizer_steps,
        lr=warm.lr,
        on_progress=lambda step, loss: on_progress(steps + step, total),
    )
    path = model_path(config)
    with new_directory(path) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        sync_folder(partial)
    return path


def _train_games(config: RunConfig) -> Games:
    split = config.env.train_split
    with contextlib.closing(make_environment(config.env, split)) as env:
        return _spec(config).games(env, config.env, split)


def _spec(config: RunConfig) -> EnvironmentSpec:
    return find_environment(config.env.env_id)


def _data_generator(config: RunConfig) -> TaskGenerator:
    generator = _spec(config).require_generator()
    assert isinstance(generator, TaskGenerator), "callers ask EnvironmentSpec.data_generator"
    return generator


def _template_source(prompt: str) -> str:
    return Path(load_template(prompt).filename or "").read_text()
