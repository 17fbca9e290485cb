"""`hgpo bench credit`: compare the estimators with true advantages, which branches estimate.

1. Play groups with the policy as in training, and compute the advantages of all their steps with
   every estimator that needs no critic, no teacher and no strategies.
2. Draw a sample of the steps.
3. For each of them, play branches from the exact state before it (`branching`): the true advantage
   is the mean return of branches that execute its response, less that of branches that sample one.

Steps and finished branches are kept in the output directory, so a stopped command can continue.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from env_wrappers.files import json_hash, write_atomically
from hgpo_rllib.advantages.estimators import ESTIMATORS, NEEDS_CRITIC, STRATA, TEACHERS
from hgpo_rllib.advantages.groups import group_advantage, history_ids
from hgpo_rllib.agent import ModelAgentFactory
from hgpo_rllib.bench.branching import AgentState, Brancher, MeanReturn
from hgpo_rllib.bench.fidelity import Result, load_result
from hgpo_rllib.bench.rollout import served
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments import find_environment
from hgpo_rllib.environments.checks import PAGE, check_no_strategies, make_environment
from hgpo_rllib.environments.spec import Progress
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.protocol import HASH_LENGTH, describe_model, describe_template, recording
from hgpo_rllib.jsonl import append_jsonl, read_jsonl, write_jsonl
from hgpo_rllib.rollout.group import gather
from hgpo_rllib.rollout.runner import HGPOEnvRunner
from hgpo_rllib.rollout.scoring import score
from hgpo_rllib.rollout.tasks import TaskOrder
from hgpo_rllib.rollout.trajectory import Trajectory
from hgpo_rllib.run.cluster import ray_cluster
from hgpo_rllib.run.job import check_is_kept
from hgpo_rllib.settings.algorithm import AlgorithmSettings

STEPS, BRANCHES, RESULT = "steps.pickle", "branches.jsonl", "result.json"
OUTPUT = "credit"
"""Parent of output directories that are named by the protocol."""
DIGITS = 5  # of recorded advantages

OnValues = Callable[[int, MeanReturn, list[MeanReturn]], None]


@dataclass(frozen=True)
class Plan:
    """Amount of work."""

    groups: int
    """Number of groups to play."""
    steps: int
    """Number of steps to sample from them."""
    branches: int
    """Branches per value: V of an agent state, and Q of a response executed there."""


class CreditRunner(HGPOEnvRunner):
    """Env runner that also plays branches."""

    def branch(
        self,
        states: Mapping[int, AgentState],
        branches: int,
        settings: AlgorithmSettings,
        on_values: OnValues,
    ) -> None:
        """Estimate the values of agent states, by number; call `on_values` after each."""
        config = self.config
        brancher = Brancher(
            cast(ModelAgentFactory, self.agent_factory(self._client(config.temperature))),
            self._pool(config.train_split),
            settings,
            branches,
            config.max_attempts,
            config.max_concurrent_episodes,
        )

        async def one(number: int, state: AgentState) -> None:
            on_values(number, *await brancher.values(state, f"credit/{number}"))

        self._run(gather, [one(number, state) for number, state in states.items()])


def bench_credit(
    config: RunConfig, plan: Plan, output: Path | None, on_progress: Progress
) -> tuple[Path, Result]:
    """Play what the output directory lacks; return it with the result.

    The directory is `output`, or named by the protocol. Progress is counted in agent states.

    Raises:
        ConfigError: the settings are unsuitable, or the directory has other content.
        RunStoppedError: a branch failed; finished states are kept.
    """
    protocol = describe(config, plan, check(config))
    name = f"{config.name}-{json_hash(protocol)[:HASH_LENGTH]}"
    folder = output or Path(OUTPUT) / name
    check_is_kept("output", folder)
    with recording(folder, protocol):
        if not (folder / RESULT).is_file():
            play_missing(config, plan, folder, on_progress)
            result = collect(folder, protocol)
            write_atomically(folder / RESULT, result.model_dump_json() + "\n")
    return folder, load_result(folder / RESULT)


def check(config: RunConfig) -> str | None:
    """Return the hash of the tasks, if the environment hashes its data.

    Raises:
        ConfigError: an environment without snapshots, strategies, a `keep_penalty`, or groups of
            one.
    """
    check_no_strategies(config, "hgpo bench credit")
    if config.algorithm.keep_penalty:
        raise ConfigError(
            "algorithm.keep_penalty: set it to 0: it depends on the length of the whole episode, "
            "and a branch is only its end"
        )
    env, split = config.env, config.env.train_split
    if config.rollout.group_size < 2:
        raise ConfigError("rollout.group_size: set it to 2 or more: estimators compare episodes")
    with closing(make_environment(env, split)) as made:
        for name in ("snapshot", "restore"):
            if not hasattr(made.unwrapped, name):
                raise ConfigError(
                    f"env.env_id: {env.env_id} has no {name}(), which branches need: add it "
                    f"({PAGE}#branches)"
                )
        return find_environment(env.env_id).games(made, env, split).data_hash


def describe(config: RunConfig, plan: Plan, data_hash: str | None) -> dict[str, Any]:
    """Return what the result depends on, except for machine and versions of packages."""
    data, agent = config.env.data, config.agent
    templates = agent.prompt, agent.follow_up_prompt
    return {
        "env": config.env.model_dump() | {"data": None if data is None else Path(data).name},
        "data_sha256": data_hash,
        "agent": agent.model_dump(),
        "templates": [describe_template(name) for name in templates],
        "algorithm": config.algorithm.model_dump(exclude={"estimator", "role_estimators"}),
        "group_size": config.rollout.group_size,
        "temperature": config.rollout.temperature,
        "seed": config.seed,
        "model": describe_model(config),
        **asdict(plan),
    }


def play_missing(config: RunConfig, plan: Plan, folder: Path, on_progress: Progress) -> None:
    """Play the groups and the branches that the directory lacks."""
    done = list(read_jsonl(folder / BRANCHES))
    write_jsonl(folder / BRANCHES, done)  # without a last line that was cut off
    if (folder / STEPS).is_file() and len(done) == len(read_steps(folder)[1]):
        return
    config = config.without_learners()
    with (
        ray_cluster(config, remedy=lambda: "repeat the command to continue"),
        served(config, CreditRunner) as runner,
    ):
        if not (folder / STEPS).is_file():
            split, rollout = config.env.train_split, config.rollout
            tasks = TaskOrder(runner.num_tasks(split), config.seed).first(plan.groups)
            played = runner.play(split, tasks, rollout.group_size, rollout.temperature)
            rows = sample_rows(sum(map(len, played)), plan.steps, config.seed)
            columns = sampled_columns(played, config.algorithm, rows)
            states = agent_states(played, tasks, rows)
            write_atomically(folder / STEPS, pickle.dumps((columns, states)))
        left = dict(enumerate(read_steps(folder)[1]))
        total, finished = len(left), len(done)
        for row in done:
            del left[row["state"]]

        def on_values(number: int, v: MeanReturn, q: list[MeanReturn]) -> None:
            nonlocal finished
            q_rows = [asdict(mean) for mean in q]
            append_jsonl(folder / BRANCHES, [{"state": number, "v": asdict(v), "q": q_rows}])
            finished += 1
            on_progress(finished, total)

        runner.branch(left, plan.branches, config.algorithm, on_values)


def read_steps(folder: Path) -> tuple[dict[str, Any], list[AgentState]]:
    """Return the columns of the sampled steps, and their agent states."""
    return pickle.loads((folder / STEPS).read_bytes())


def collect(folder: Path, protocol: dict[str, Any]) -> Result:
    """Join the sampled steps with the values of their agent states."""
    columns, states = read_steps(folder)
    count = len(columns["group"])
    q, v, error = np.zeros(count), np.zeros(count), np.zeros(count)
    for row in read_jsonl(folder / BRANCHES):
        for step, mean in zip(states[row["state"]].steps, row["q"], strict=True):
            q[step], v[step] = mean["value"], row["v"]["value"]
            error[step] = np.sqrt(mean["variance"] + row["v"]["variance"])
    truth = {"q": rounded(q), "v": rounded(v), "error": rounded(error)}
    return Result(protocol=protocol, **columns, **truth)


def sample_rows(steps: int, count: int, seed: int) -> NDArray[np.intp]:
    """Draw `count` of the steps of a batch, each with the same probability, without replacement.

    With fewer steps than `count`, all are returned.

    Returns:
        Row numbers, ascending.
    """
    drawn = np.random.default_rng(seed).choice(steps, min(count, steps), replace=False)
    return np.sort(drawn)


def sampled_columns(
    played: list[Trajectory], settings: AlgorithmSettings, rows: NDArray[np.intp]
) -> dict[str, Any]:
    """Return the columns of some steps: where they are, and their advantages by every estimator.

    All steps of `played` are scored together, as one batch.
    """
    scored = score(played, settings)
    steps, estimator_settings = scored.steps, settings.estimator_settings()
    estimates = {
        name: function(steps, estimator_settings)
        for name, function in ESTIMATORS.items()
        if name not in (*NEEDS_CRITIC, *TEACHERS, STRATA)
    }
    levels = {f"k = {k}": (level.advantage, level.size) for k, level in enumerate(scored.levels)}
    levels["oracle"] = group_advantage(history_ids(steps), steps.step_return, settings.normalize)
    member = np.repeat([t.member for t in played], [len(t) for t in played])
    return {
        "group": steps.task[rows].tolist(),
        "member": member[rows].tolist(),
        "time": steps.time[rows].tolist(),
        "estimates": {name: rounded(values[rows]) for name, values in estimates.items()},
        "levels": {name: rounded(values[rows]) for name, (values, _) in levels.items()},
        "sizes": {name: sizes[rows].tolist() for name, (_, sizes) in levels.items()},
    }


def rounded(values: NDArray[np.float64]) -> list[float]:
    """Round to `DIGITS` significant digits."""
    return [float(f"{value:.{DIGITS}g}") for value in values]


def agent_states(
    played: Sequence[Trajectory], tasks: Sequence[int], rows: NDArray[np.intp]
) -> list[AgentState]:
    """Return the agent states of some steps, in order of their first step.

    Steps of one group after the same actions and with the same prompt share a state, so that its
    value V is estimated once: the environment is deterministic, and the prompt contains all of the
    memory that later prompts can show, unless it was shortened.

    Args:
        played: the trajectories.
        tasks: number of the task of each group, by the number at the end of the group's name.
        rows: numbers of the steps, counted over all trajectories.
    """
    places = [(i, t) for i, trajectory in enumerate(played) for t in range(len(trajectory))]
    states: dict[Any, AgentState] = {}
    for position, row in enumerate(rows):
        index, time = places[row]
        trajectory = played[index]
        turn, before = trajectory.steps[time].turn, trajectory.turns[:time]
        actions = tuple(earlier.action for earlier in before)
        key: Any = (trajectory.group, actions, tuple(turn.prompt_ids.tolist()))
        if turn.prompt_truncated:
            key = position
        task = tasks[int(trajectory.group.rpartition("/")[2])]
        state = states.setdefault(key, AgentState(task, before))
        state.executed.append(turn)
        state.steps.append(position)
    return list(states.values())
