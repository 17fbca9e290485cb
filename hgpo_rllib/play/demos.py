"""Write demonstrations as versioned JSON lines, one per step or per conversation."""

import functools
import gzip
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from env_wrappers.alfworld.env import ALFWorldEnv
from env_wrappers.datasets import new_file
from env_wrappers.errors import DataError
from env_wrappers.processes import map_in_processes
from hgpo_rllib.agent import TextRenderer
from hgpo_rllib.config import EnvSettings
from hgpo_rllib.play.experts import make_expert
from hgpo_rllib.warmstart.demonstrations import play

FORMAT = "hgpo-demo-1"


@dataclass(frozen=True)
class DemoSpec:
    """What to demonstrate, with which expert and prompts."""

    data: Path
    split: str
    expert: str
    """A name of `experts.EXPERTS`."""
    prompt: str
    """Name or path of a prompt template."""
    memory_length: int
    """Number of (observation, action) pairs in a prompt."""
    limit: int | None
    """Number of games, evenly spaced in the sorted list; None demonstrates all."""
    seed: int
    """Seed of the explorer's search."""
    planner_seconds: float
    """Time limit of the planner for one game."""
    trusted: bool = False
    """See `env_wrappers.alfworld.engine.GameEngine`."""
    follow_up_prompt: str | None = None
    """Template of the messages after the first in conversations; None: prompts of a window."""


@dataclass(frozen=True)
class Demo:
    """The records of one game, or the reason why there are none."""

    game: str
    records: tuple[dict[str, Any], ...] = ()
    left_out: str | None = None


def write_demos(
    out: Path,
    spec: DemoSpec,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Demo]:
    """Write the won episodes to `out`, atomically after all games are played.

    The result depends only on the spec.

    Returns:
        All demonstrations, including those without records.

    Raises:
        DataError: there are no games, or none could be demonstrated; nothing is written.
    """
    games = _choose(_environment(spec.data, spec.split, spec.trusted).games, spec.limit)
    demos: list[Demo] = []
    with new_file(out) as file, _packed(file) if out.suffix == ".gz" else file as stream:
        work = functools.partial(demonstrate_game, spec)
        for demo in map_in_processes(work, games):
            stream.writelines(json.dumps(record).encode() + b"\n" for record in demo.records)
            demos.append(demo)
            on_progress(len(demos), len(games))
        if all(demo.left_out for demo in demos):
            raise DataError(f"no game could be demonstrated, the first because {demos[0].left_out}")
    return demos


def demonstrate_game(spec: DemoSpec, game: str) -> Demo:
    """Play one game with the expert; unlike for the pocket model, actions are not perturbed."""
    name = Path(*Path(game).parts[-5:]).as_posix()
    rng = random.Random(f"{spec.seed}/{Path(game).parent.name}/0")
    try:
        return _play(spec, game, name, rng)
    except DataError as error:
        return Demo(name, left_out=str(error))


def _play(spec: DemoSpec, game: str, name: str, rng: random.Random) -> Demo:
    env = _environment(spec.data, spec.split, spec.trusted)
    started = env.reset(options={"game": game})
    task = {key: started[1][key] for key in ("task_type", "goal")}
    expert = make_expert(spec.expert, started[1], rng, spec.planner_seconds, spec.trusted)
    follow_up = spec.follow_up_prompt
    renderer = TextRenderer(
        spec.prompt,
        spec.memory_length,
        context="conversation" if follow_up else "window",
        follow_up_prompt=follow_up or "follow_up",
    )
    examples, info = play(env, started, expert, renderer)
    if not info["won"]:
        return Demo(name, left_out=f"the {spec.expert} did not win in {len(examples)} steps")
    if renderer.is_conversation:
        roles = itertools.cycle(("user", "assistant"))
        texts = itertools.chain.from_iterable(examples)
        messages = [
            {"role": role, "content": text} for role, text in zip(roles, texts, strict=False)
        ]
        return Demo(name, ({"format": FORMAT, "game": name, **task, "messages": messages},))
    records = (
        {"format": FORMAT, "game": name, **task, "time": time, "prompt": text, "response": response}
        for time, (text, response) in enumerate(examples)
    )
    return Demo(name, tuple(records))


@functools.lru_cache(maxsize=1)  # once per process: listing a large split takes a second
def _environment(data: Path, split: str, trusted: bool) -> ALFWorldEnv:
    return ALFWorldEnv(data, split, max_steps=EnvSettings().max_steps, trusted=trusted)


def _packed(file: BinaryIO) -> gzip.GzipFile:
    # Without name and time, equal demonstrations give identical bytes.
    return gzip.GzipFile("", "wb", fileobj=file, mtime=0)


def _choose(games: list[str], limit: int | None) -> list[str]:
    """Return evenly spaced games: the sorted list begins with a single family."""
    count = len(games) if limit is None else min(limit, len(games))
    return [games[index * len(games) // count] for index in range(count)]
