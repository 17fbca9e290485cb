"""Write demonstrations as versioned JSON lines, one per step or per conversation."""

import functools
import gzip
import itertools
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import gymnasium

from env_wrappers.datasets import evenly, new_file
from env_wrappers.errors import DataError
from env_wrappers.processes import map_in_processes
from hgpo_rllib.agent import TextRenderer
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments import find_environment
from hgpo_rllib.environments.checks import make_environment
from hgpo_rllib.environments.spec import MakeExpert, Progress
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.settings.env import EnvSettings
from hgpo_rllib.warmstart.demonstrations import play

FORMAT = "hgpo-demo-1"


@dataclass(frozen=True)
class Demo:
    """The records of one episode, or the reason why there are none."""

    game: str
    records: tuple[dict[str, Any], ...] = ()
    left_out: str | None = None


def write_demos(
    out: Path,
    config: RunConfig,
    expert: str,
    repeats: int,
    seed: int,
    limit: int | None,
    on_progress: Progress,
) -> list[Demo]:
    """Write the won episodes to `out`, atomically after all tasks are played.

    Args:
        out: file to write.
        config: environment, train split and prompts.
        expert: ``oracle``, or a name of `EnvironmentSpec.players`.
        repeats: episodes per task. A planned walkthrough is always the same.
        seed: seed of the expert.
        limit: number of tasks, evenly spaced; None: all.
        on_progress: receives the number of finished episodes, and of all.

    Returns:
        All demonstrations, including those without records.

    Raises:
        ConfigError: there is no such expert.
        DataError: none of the tasks could be demonstrated; nothing is written.
    """
    env = config.env
    playing = _environment(env.model_dump_json())
    games = find_environment(env.env_id).games(playing, env, env.train_split)
    tasks = evenly(len(games.names), limit)
    work = [(task, games.names[task], repeat) for task in tasks for repeat in range(repeats)]
    demonstrate = functools.partial(_demonstrate, config, expert, seed)
    demos: list[Demo] = []
    with new_file(out) as file, _packed(file) if out.suffix == ".gz" else file as stream:
        for demo in map_in_processes(demonstrate, work):
            stream.writelines(json.dumps(record).encode() + b"\n" for record in demo.records)
            demos.append(demo)
            on_progress(len(demos), len(work))
        if all(demo.left_out for demo in demos):
            raise DataError(f"no task could be demonstrated, the first because {demos[0].left_out}")
    return demos


def find_expert(name: str, settings: EnvSettings) -> MakeExpert:
    """Return the function that creates the expert of an episode.

    Raises:
        ConfigError: the environment has no such expert.
    """
    experts = find_environment(settings.env_id).experts(settings, fallback=None)
    if name not in experts:
        known = ", ".join(experts) or "none"
        raise ConfigError(f"--expert: unknown {name!r}, choose from {known}")
    return experts[name]


def _demonstrate(config: RunConfig, expert: str, seed: int, episode: tuple[int, str, int]) -> Demo:
    """Play one episode with the expert; unlike for the pocket model, actions are not perturbed."""
    task, name, repeat = episode
    env, renderer = _environment(config.env.model_dump_json()), TextRenderer(config.agent)
    try:
        started = env.reset(seed=task)
        rng = random.Random(f"{seed}/{name}/{repeat}")
        player = find_expert(expert, config.env)(started[1], rng)
        examples, info = play(env, started, player, renderer)
    except DataError as error:
        return Demo(name, left_out=str(error))
    if not info["won"]:
        return Demo(name, left_out=f"the expert {expert} did not win in {len(examples)} steps")
    record = {"format": FORMAT, "game": name}
    record |= {key: started[1][key] for key in ("task_type", "goal")}
    if renderer.is_conversation:
        roles = itertools.cycle(("user", "assistant"))
        texts = itertools.chain.from_iterable(examples)
        messages = [{"role": next(roles), "content": text} for text in texts]
        return Demo(name, (record | {"messages": messages},))
    steps = enumerate(examples)
    return Demo(
        name, tuple(record | {"time": t, "prompt": p, "response": r} for t, (p, r) in steps)
    )


@functools.lru_cache(maxsize=1)  # once per process: reading a large split takes a second
def _environment(settings: str) -> gymnasium.Env:
    env = EnvSettings.model_validate_json(settings)
    return make_environment(env, env.train_split)


def _packed(file: BinaryIO) -> gzip.GzipFile:
    # Without name and time, equal demonstrations give identical bytes.
    return gzip.GzipFile("", "wb", fileobj=file, mtime=0)
