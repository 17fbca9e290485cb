"""`hgpo evaluate`: plan, play what is left of the plan, summarise."""

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
"""Where directories are made whose name the protocol gives."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Request:
    """What to evaluate, and how."""

    config: RunConfig
    subject: Subject | None
    """The model; None for agents that ask none."""
    agent: str
    """Of `agents.AGENTS`."""
    split: str
    kind: Kind
    seeds: int
    """Seeds of a census."""
    games: int | None
    """How many of them; None: all."""
    trials: int
    """Episodes that `reflexion` may play of a task."""
    output: Path | None
    """None: a directory that the protocol names."""
    given_as: str
    """The model, as the user wrote it."""


@dataclass(frozen=True)
class Finished:
    """An evaluation whose episodes have all been played."""

    path: Path
    summary: dict[str, Any]
    played: int
    """Episodes of this call."""


def evaluate(request: Request, on_progress: Progress = lambda done, total: None) -> Finished:
    """Play the episodes that the output directory lacks, and write its summary.

    Raises:
        ConfigError: bad input, or the directory holds something else.
        DataError: of the environment's data.
        RunStoppedError: some episodes could not be played; the others are kept.
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
            directory.write_records(records)  # without a line that was cut
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
    """The environments of the split."""
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
    """The episodes of a protocol."""
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
    """A directory with the protocol's hash in its name."""
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
    """Play, and write every episode when it ends.

    Raises:
        RunStoppedError: some could not be played.
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
    """How the agent of the request begins a task."""
    config = request.config
    if model is None:
        return begin_scripted(request.agent, config.env)
    return begin_model_agent(
        request.agent, config.agent, config.env.env_id, request.trials, model.begin
    )


def concurrency(request: Request) -> int:
    """Episodes at the same time: one where no model is asked, which could answer several."""
    return 1 if request.subject is None else request.config.rollout.max_concurrent_episodes


def describe_failures(failures: Counter[str], lost: int) -> str:
    """Which episodes are missing, and why."""
    causes = ", ".join(f"{name} {failures[name]}" for name in FAILURES if failures[name])
    return (
        f"{lost} episodes could not be played ({causes}; see the warnings above): the others are "
        "kept, the same command goes on"
    )


def summarise(
    request: Request, protocol: Block, records: Sequence[Record], played: int, seconds: float
) -> dict[str, Any]:
    """The content of summary.json; only `made` differs between two evaluations that agree."""
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
