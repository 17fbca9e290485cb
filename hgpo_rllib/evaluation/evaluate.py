"""`hgpo evaluate`: plan the episodes, play the missing ones, and summarize."""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from env_wrappers.files import json_hash, write_json
from hgpo_rllib.agent import Turn
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments import Games, find_environment
from hgpo_rllib.environments.checks import make_environment
from hgpo_rllib.environments.spec import Progress
from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.evaluation.agents import model_agent_factory
from hgpo_rllib.evaluation.models import EvaluatedModel
from hgpo_rllib.evaluation.plan import Kind, Plan, PlannedEpisode, full_plan, released_plan
from hgpo_rllib.evaluation.protocol import HASH_LENGTH, describe, describe_agent, recording
from hgpo_rllib.evaluation.scripted import scripted_agent_factory
from hgpo_rllib.evaluation.statistics import results
from hgpo_rllib.jsonl import EVALUATED_EPISODES, Row, append_jsonl, write_jsonl
from hgpo_rllib.results.evaluations import EPISODES, FORMAT, SUMMARY, evaluated_frames
from hgpo_rllib.results.frames import read_episodes, read_object
from hgpo_rllib.rollout.environments import EnvPool, EnvThread
from hgpo_rllib.rollout.group import FAILURES, GroupPlayer, gather, play_in_pool
from hgpo_rllib.rollout.trajectory import Step, Trajectory
from hgpo_rllib.run.changes import git_commit
from hgpo_rllib.run.job import check_is_kept

OUTPUT = "evaluations"
"""Parent of output directories that are named by the protocol."""


@dataclass(frozen=True)
class Request:
    """Arguments of an evaluation."""

    config: RunConfig
    model: EvaluatedModel | None
    """The model; None for agents without a model."""
    agent: str
    """Name of the agent, see `request.check_agent`."""
    split: str
    kind: Kind
    seeds: int
    """Number of seeds of the protocol `full`."""
    games: int | None
    """Number of games; None: the protocol's default."""
    trials: int
    """Maximum number of episodes per task of `reflexion`."""
    output: Path | None
    """Output directory; None: named by the protocol."""
    model_argument: str
    """The model as given by the user."""


@dataclass(frozen=True)
class EvaluationResult:
    """An evaluation whose episodes have all been played."""

    path: Path
    summary: dict[str, Any]
    played: int
    """Number of episodes played in this call."""


def evaluate(
    request: Request, on_progress: Progress = lambda done, total: None
) -> EvaluationResult:
    """Play the episodes that are missing in the output directory, and write the summary.

    Raises:
        ConfigError: invalid input, or the directory has other content.
        DataError: the environment's data are invalid.
        RunStoppedError: some episodes failed; the others are kept.
    """
    env = request.config.env
    spec = find_environment(env.env_id)
    make = partial(make_environment, env, request.split)
    with (
        contextlib.closing(EnvThread(request.config.rollout.env_timeout_s)) as thread,
        contextlib.closing(EnvPool(make, thread)) as pool,
    ):
        games = spec.games(pool.first, env, request.split)
        plan, protocol = plan_episodes(request, games)
        hashed = json_hash(protocol)
        name = f"{spec.name}-{request.split}-{request.agent}-{hashed[:HASH_LENGTH]}"
        path = request.output or Path(OUTPUT) / name
        check_is_kept("output", path)
        with recording(path, protocol):
            if (path / SUMMARY).is_file():
                return EvaluationResult(path, read_object(path / SUMMARY), 0)
            file = path / EPISODES
            done = _records(file)
            write_jsonl(file, done.values())  # removes a truncated line
            left = [
                episode for episode in plan.episodes if (episode.seed, episode.place) not in done
            ]
            start = time.monotonic()
            if left:
                play_episodes(request, left, games, pool, file, on_progress)
            done = _records(file)
            records = [done[episode.seed, episode.place] for episode in plan.episodes]
            write_jsonl(file, records)
            summary = {
                "format": FORMAT,
                "protocol_sha256": hashed,
                "results": results(*evaluated_frames(records, file)),
                "protocol": protocol,
                "made": {  # equal evaluations differ only in these
                    "model": request.model_argument,
                    "data": env.data,
                    "git_commit": git_commit(),
                    "seconds": round(time.monotonic() - start, 1),
                    "episodes_of_last_call": len(left),
                },
            }
            write_json(path / SUMMARY, summary)
    return EvaluationResult(path, summary, len(left))


def _records(file: Path) -> dict[tuple[int, int], Row]:
    """Return the finished episodes by seed and place, which identify them."""
    return {(row["seed"], row["place"]): row for row in read_episodes(file, EVALUATED_EPISODES)}


def plan_episodes(request: Request, games: Games) -> tuple[Plan, Row]:
    """Return the episodes of an evaluation and its protocol.

    Raises:
        ConfigError: the split has fewer games than requested.
    """
    if request.kind == "released":
        by_worker = find_environment(request.config.env.env_id).released_shuffles
        plan = released_plan(len(games.names), request.games, by_worker)
    else:
        plan = full_plan(len(games.names), request.seeds, request.games)
    agent, model = {"name": request.agent}, None
    if request.model is not None:
        trials = request.trials if request.agent == "reflexion" else 1
        agent = describe_agent(request.agent, request.config, trials)
        model = request.model.describe()
    return plan, describe(request.config, request.split, plan, games, agent, model)


def play_episodes(
    request: Request,
    episodes: Sequence[PlannedEpisode],
    games: Games,
    pool: EnvPool,
    file: Path,
    on_progress: Progress,
) -> None:
    """Play the episodes and append each episode to the file when it ends.

    Raises:
        RunStoppedError: some episodes failed.
    """
    config, split = request.config, request.split
    with contextlib.ExitStack() as stack:
        if request.model is None:
            make_agent, model = scripted_agent_factory(request.agent, config.env), None
            concurrency = 1  # nothing is batched
        else:
            model = stack.enter_context(request.model.open())
            make_agent = model_agent_factory(request.agent, config, request.trials, model)
            concurrency = config.rollout.max_concurrent_episodes
        limit = asyncio.Semaphore(concurrency)
        play_member = partial(play_in_pool, make_agent, pool)
        player = GroupPlayer(play_member, config.rollout.max_attempts, limit)
        ended = 0

        async def play(episode: PlannedEpisode) -> None:
            nonlocal ended
            trajectory = await player.play_member(
                episode.task, f"{episode.seed}/{split}/{episode.place}", 0
            )
            if trajectory is None:
                return
            record = episode_record(trajectory, episode, split, games.names[episode.task])
            append_jsonl(file, [record])
            ended += 1
            on_progress(ended, len(episodes))

        (model.run if model else asyncio.run)(gather([play(episode) for episode in episodes]))
    if ended < len(episodes):
        lost = player.failures
        causes = ", ".join(f"{name} {lost[name]}" for name in FAILURES if lost[name])
        raise RunStoppedError(
            f"{len(episodes) - ended} episodes could not be played ({causes}; see the warnings "
            "above): the others are kept, repeat the command to continue"
        )


def episode_record(trajectory: Trajectory, episode: PlannedEpisode, split: str, game: str) -> Row:
    """Return one episode as JSON, without times or machine data: equal episodes are equal lines.

    The trajectory is that of the last trial if the agent has several.
    """
    last = trajectory.steps[-1].info
    # Includes strategies, earlier trials and reflections.
    tokens = [response.tokens for turn in _turns(trajectory) for response in turn.responses]
    return {
        "format": EVALUATED_EPISODES,
        "seed": episode.seed,
        "place": episode.place,
        "split": split,
        "game": game,
        "task_type": trajectory.info["task_type"],
        "goal": trajectory.info["goal"],
        "success": trajectory.won,
        "score": float(last.get("task_score", trajectory.won)),
        "episode_return": trajectory.episode_return,
        "prompt_tokens": sum(prompt for prompt, _ in tokens),
        "response_tokens": sum(response for _, response in tokens),
        "trials": 1 + len(trajectory.earlier),
        "lost_trials": [
            {
                "actions": [turn.action for turn in trial.trajectory.turns],
                "reflection": trial.reflection.completion,
            }
            for trial in trajectory.earlier
        ],
        "steps": [_step(time, step) for time, step in enumerate(trajectory.steps)],
    }


def _turns(trajectory: Trajectory) -> Iterable[Turn]:
    for trial in trajectory.earlier:
        yield from trial.trajectory.turns
        yield trial.reflection
    yield from trajectory.turns


def _step(time: int, step: Step) -> Row:
    turn = step.turn
    prompt, response = turn.tokens
    return {
        "time": time,
        "anchor": turn.observation,
        "prompt": turn.prompt or "",
        "completion": turn.completion,
        "action": turn.action,
        "is_valid": turn.is_valid,
        "inadmissible": bool(step.info["inadmissible"]),
        "reward": step.reward,
        "prompt_tokens": prompt,
        "response_tokens": response,
        "prompt_truncated": turn.prompt_truncated,
        "response_truncated": turn.response_truncated,
    }
