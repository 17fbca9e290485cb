"""`hgpo evaluate`: plan the episodes, play the missing ones, and summarize."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hgpo_rllib.agent import BeginAgent
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments import Games, find_environment
from hgpo_rllib.environments.checks import make_environment
from hgpo_rllib.evaluation.agents import begin_model_agent, reflection_settings
from hgpo_rllib.evaluation.directory import EvaluationDirectory
from hgpo_rllib.evaluation.models import Model, Subject
from hgpo_rllib.evaluation.plan import Kind, Plan, Slot, census, parity
from hgpo_rllib.evaluation.protocol import (
    HASH_LENGTH,
    Block,
    describe,
    describe_agent,
    git_commit,
    protocol_hash,
)
from hgpo_rllib.evaluation.records import Decode, Record, episode_record, in_order, key_of
from hgpo_rllib.evaluation.scripted import begin_scripted
from hgpo_rllib.evaluation.summary import results
from hgpo_rllib.results.evaluations import EPISODES, FORMAT, evaluated_frames
from hgpo_rllib.rollout.environments import EnvPool, EnvThread
from hgpo_rllib.rollout.group import FAILURES, Rollout
from hgpo_rllib.run.lock import locked
from hgpo_rllib.section import RunStoppedError

OUTPUT = "evaluations"
"""Parent of output directories that are named by the protocol."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Request:
    """Arguments of an evaluation."""

    config: RunConfig
    subject: Subject | None
    """The model; None for agents without a model."""
    agent: str
    """An element of `agents.AGENTS`."""
    split: str
    kind: Kind
    seeds: int
    """Number of seeds of a census."""
    games: int | None
    """Number of games; None: the protocol's default."""
    trials: int
    """Maximum number of episodes per task of `reflexion`."""
    output: Path | None
    """Output directory; None: named by the protocol."""
    given_as: str
    """The model as given by the user."""


@dataclass(frozen=True)
class Finished:
    """An evaluation whose episodes have all been played."""

    path: Path
    summary: dict[str, Any]
    played: int
    """Number of episodes played in this call."""


def evaluate(request: Request, on_progress: Progress = lambda done, total: None) -> Finished:
    """Play the episodes that are missing in the output directory, and write the summary.

    Raises:
        ConfigError: invalid input, or the directory has other content.
        DataError: the environment's data are invalid.
        RunStoppedError: some episodes failed; the others are kept.
    """
    with environments(request) as pool:
        env = request.config.env
        games = find_environment(env.env_id).games(pool.first, env, request.split)
        plan = make_plan(request, len(games.names))
        protocol = describe_protocol(request, plan, games)
        directory = EvaluationDirectory(
            request.output or default_output(request, protocol), protocol
        )
        with locked(directory.path):
            summary = directory.summary()
            if summary is not None:
                return Finished(directory.path, summary, 0)
            records = directory.records()
            directory.write_records(records)  # removes a truncated line
            done = {key_of(record) for record in records}
            left = [slot for slot in plan.slots if (slot.seed, slot.place) not in done]
            start = time.monotonic()
            if left:
                play_slots(request, left, games, pool, directory, on_progress)
            ordered = in_order(directory.records(), plan.slots)
            directory.write_records(ordered)
            summary = summarise(request, protocol, ordered, len(left), time.monotonic() - start)
            directory.write_summary(summary)
    return Finished(directory.path, summary, len(left))


@contextlib.contextmanager
def environments(request: Request) -> Iterator[EnvPool]:
    """Yield a pool of environments of the split."""
    env = request.config.env
    make = partial(make_environment, env, request.split)
    thread = EnvThread(request.config.rollout.env_timeout_s)
    try:
        pool = EnvPool(make, thread)
        try:
            yield pool
        finally:
            pool.close()
    finally:
        thread.close()


def make_plan(request: Request, num_tasks: int) -> Plan:
    """Return the episodes of the request's protocol."""
    if request.kind == "parity":
        shuffles = find_environment(request.config.env.env_id).parity_shuffles
        return parity(num_tasks, request.games, by_worker=shuffles)
    return census(num_tasks, request.seeds, request.games)


def describe_protocol(request: Request, plan: Plan, games: Games) -> Block:
    """See `protocol.describe`."""
    config = request.config
    if request.subject is None:
        return describe(config, request.split, plan, games, {"name": request.agent}, None)
    reflexion = request.agent == "reflexion"
    looking_back = reflection_settings(config.agent, config.env.env_id) if reflexion else None
    agent = describe_agent(
        request.agent,
        config.agent,
        config.evaluation.temperature,
        request.trials if reflexion else 1,
        looking_back.prompt if looking_back else None,
    )
    return describe(config, request.split, plan, games, agent, request.subject.describe())


def default_output(request: Request, protocol: Block) -> Path:
    """Return the default output directory, whose name includes the protocol's hash."""
    env = find_environment(request.config.env.env_id).name
    hashed = protocol_hash(protocol)[:HASH_LENGTH]
    return Path(OUTPUT) / f"{env}-{request.split}-{request.agent}-{hashed}"


def play_slots(
    request: Request,
    slots: Sequence[Slot],
    games: Games,
    pool: EnvPool,
    directory: EvaluationDirectory,
    on_progress: Progress,
) -> None:
    """Play the slots and write each episode when it ends.

    Raises:
        RunStoppedError: some episodes failed.
    """
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(request.subject.open()) if request.subject else None
        rollout = Rollout(
            begin_agent(request, model),
            pool,
            request.config.rollout.max_attempts,
            asyncio.Semaphore(concurrency(request)),
        )
        ended = 0

        def on_end(slot: Slot, record: Record) -> None:
            nonlocal ended
            directory.append(record)
            ended += 1
            on_progress(ended, len(slots))

        decode = model.decode if model else _no_tokens
        work = _play_all(rollout, slots, request.split, games, decode, on_end)
        (model.run if model else asyncio.run)(work)
    if ended < len(slots):
        raise RunStoppedError(describe_failures(rollout.failures, len(slots) - ended))


def _no_tokens(ids: Any) -> str:
    return ""


async def _play_all(
    rollout: Rollout,
    slots: Sequence[Slot],
    split: str,
    games: Games,
    decode: Decode,
    on_end: Callable[[Slot, Record], None],
) -> None:
    async def play(slot: Slot) -> None:
        trajectory = await rollout.member(slot.task, f"{slot.seed}/{split}/{slot.place}", 0)
        if trajectory is not None:
            game = games.names[slot.task]
            on_end(slot, episode_record(trajectory, slot, split, game, decode))

    await asyncio.gather(*map(play, slots))


def begin_agent(request: Request, model: Model | None) -> BeginAgent:
    """Return the function with which the request's agent starts a task."""
    config = request.config
    if model is None:
        return begin_scripted(request.agent, config.env)
    return begin_model_agent(
        request.agent, config.agent, config.env.env_id, request.trials, model.begin
    )


def concurrency(request: Request) -> int:
    """Return the number of concurrent episodes; one without a model, where nothing is batched."""
    return 1 if request.subject is None else request.config.rollout.max_concurrent_episodes


def describe_failures(failures: Counter[str], lost: int) -> str:
    """Return how many episodes are missing, and why."""
    causes = ", ".join(f"{name} {failures[name]}" for name in FAILURES if failures[name])
    return (
        f"{lost} episodes could not be played ({causes}; see the warnings above): the others are "
        "kept, the same command goes on"
    )


def summarise(
    request: Request, protocol: Block, records: Sequence[Record], played: int, seconds: float
) -> dict[str, Any]:
    """Return the content of summary.json. Equal evaluations differ only in `made`."""
    return {
        "format": FORMAT,
        "protocol_sha256": protocol_hash(protocol),
        "results": results(*evaluated_frames(records, Path(EPISODES))),
        "protocol": protocol,
        "made": {
            "model": request.given_as,
            "data": request.config.env.data,
            "git_commit": git_commit(),
            "seconds": round(seconds, 1),
            "episodes_of_last_call": played,
        },
    }
