"""Compute the returns and advantages of trajectories, for the learner and the records."""

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.advantages import EstimatorSettings, StepArrays, find_estimator
from hgpo_rllib.advantages.baselines import value_targets
from hgpo_rllib.advantages.estimators import HIPER, STRATEGY
from hgpo_rllib.advantages.groups import Level, compare_levels
from hgpo_rllib.advantages.hindsight import gear
from hgpo_rllib.advantages.segments import SegmentValues, hiper
from hgpo_rllib.advantages.tokens import TOKEN_ESTIMATORS, TokenArrays
from hgpo_rllib.agent import Span, Turn
from hgpo_rllib.agent.parsing import find_blocks
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.rollout.trajectory import ResponseRow, Trajectory, response_rows
from hgpo_rllib.settings.algorithm import AlgorithmSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScoredTrajectories:
    """Trajectories with the returns and advantages of their steps, in the same order."""

    trajectories: list[Trajectory]
    steps: StepArrays
    advantage: NDArray[np.float64]
    """Advantages of all steps, ordered by trajectory, shape ``(steps,)``."""
    levels: tuple[Level, ...]
    """Comparison of every step with its group at depths k = 0, 1, …, K."""
    value: NDArray[np.float64] | None = None
    """A critic's value of each response, shape ``(responses,)``; None without a critic. With an
    estimator of tokens, shape ``(responses, 1 + R)``: column 1 + j is the value before token j."""
    value_target: NDArray[np.float64] | None = None
    """The critic's target for each value; None without a critic."""
    token_advantage: NDArray[np.float64] | None = None
    """Advantages of response tokens, shape ``(responses, R)``; None if all tokens of all responses
    have the advantage of their step."""
    teacher_logp: NDArray[np.float64] | None = None
    """A teacher's log-probabilities of response tokens, shape ``(responses, R)``, if the policy is
    distilled from it; NaN after a response."""

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Split an array with one row per step by trajectory."""
        ends = np.cumsum([len(trajectory) for trajectory in self.trajectories])
        return np.split(values, ends[:-1])


def score(
    trajectories: list[Trajectory],
    settings: AlgorithmSettings,
    value: NDArray[np.float64] | None = None,
    teacher: NDArray[np.float64] | None = None,
) -> ScoredTrajectories:
    """Compute returns and advantages of all steps.

    Estimators treat every group as a separate task, so two groups that play the same game are not
    compared with each other; nor are trajectories of a group with different strategies, except by
    `strata`. `value` is a critic's value of every response, in the order of
    `response_rows`; None without a critic. Estimators of tokens also need the values of tokens,
    see `ScoredTrajectories.value`. `teacher` is a teacher's log-probability of every response
    token, shape ``(responses, R)``, NaN after a response. Value and log-probabilities of a step are
    those of its acting response.

    Raises:
        ConfigError: the estimator needs something that the agent or the environment does not have,
            or has advantages of tokens, but responses have spans.
    """
    lengths = [len(trajectory) for trajectory in trajectories]
    states = [_states(trajectory, settings.anchor) for trajectory in trajectories]
    strategies = [_strategy(trajectory) for trajectory in trajectories]
    rows = response_rows(trajectories)
    all_steps = [step for trajectory in trajectories for step in trajectory.steps]
    teacher_nll = None
    if teacher is not None:
        teacher_nll = _nll([logp[~np.isnan(logp)] for logp in teacher[_acting(rows)]])
    steps = StepArrays.from_columns(
        task=[
            (t.group, strategy)
            for t, strategy in zip(trajectories, strategies, strict=True)
            for _ in t.steps
        ],
        parent=[t.group for t in trajectories for _ in t.steps]
        if any(strategy is not None for strategy in strategies)
        else None,
        trajectory=np.repeat(np.arange(len(trajectories)), lengths),
        time=np.concatenate([np.arange(length) for length in lengths]),
        anchor=[key for keys in states for key in keys[:-1]],
        next_anchor=[key for keys in states for key in keys[1:]],
        reward=[reward for t in trajectories for reward in _rewards(t, settings.keep_penalty)],
        invalid=[not step.turn.is_valid for step in all_steps],
        gamma=settings.gamma,
        invalid_penalty=settings.invalid_penalty,
        value=None if value is None else value.reshape(len(value), -1)[_acting(rows), 0],
        won=np.repeat([t.won for t in trajectories], lengths),
        action=[step.turn.action for step in all_steps],
        nll=_nll([step.turn.behavior_logp for step in all_steps]),
        teacher_nll=teacher_nll,
    )
    estimator_settings = settings.estimator_settings()
    levels = tuple(compare_levels(steps, estimator_settings))

    def advantages(estimator: str) -> NDArray[np.float64]:
        try:
            return find_estimator(estimator)(steps, estimator_settings)
        except ValueError as error:  # a column that the agent or the environment lacks
            raise ConfigError(f"estimator {estimator}: {error}") from error

    advantage = advantages(settings.estimator)
    target = token_advantage = None
    if value is not None:
        target = value_targets(steps, estimator_settings)[[row.step for row in rows]]
        if value.ndim == 2:
            if settings.estimator == HIPER:
                token_advantage, target = _score_blocks(rows, value, steps, estimator_settings)
            else:
                token_advantage, token_target = _score_tokens(rows, value, steps, settings)
                target = np.column_stack([target, token_target])
    if teacher is not None and settings.estimator == "gear":
        token_advantage = _weigh_tokens(rows, teacher, steps, advantage)
    by_role = {role: advantages(name) for role, name in settings.role_estimators.items()}
    found = {span.role for row in rows for span in _spans(row.response)}
    for role in by_role:
        if role not in found:
            logger.warning("algorithm.role_estimators: no response has the role %r", role)
    if token_advantage is None and (by_role or any(row.response.spans for row in rows)):
        token_advantage = _credit_spans(rows, advantage, by_role)
    distilled = teacher if settings.estimator == "sdar" else None
    return ScoredTrajectories(
        trajectories, steps, advantage, levels, value, target, token_advantage, distilled
    )


def _spans(response: Turn) -> Sequence[Span]:
    """Return the spans of a response; without any, the whole response is one."""
    return response.spans or (Span(0, len(response.response_ids), response.role),)


def _credit_spans(
    rows: Sequence[ResponseRow],
    advantage: NDArray[np.float64],
    by_role: Mapping[str, NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return advantages of tokens, the sums over their spans, shape ``(responses, R)``.

    `by_role` has advantages of all steps for some roles; spans of other roles use `advantage`.
    """
    credit = np.zeros((len(rows), max(len(row.response.response_ids) for row in rows)))
    for index, row in enumerate(rows):
        for span in _spans(row.response):
            credit[index, span.start : span.end] += by_role.get(span.role, advantage)[row.step]
    return credit


def _score_tokens(
    rows: Sequence[ResponseRow],
    value: NDArray[np.float64],
    steps: StepArrays,
    settings: AlgorithmSettings,
) -> NDArray[np.float64]:
    """Return advantages of tokens and targets of their values, shape ``(2, responses, R)``."""
    step, response, token = _token_places(rows, settings.estimator)
    tokens = TokenArrays(step, response, value[response, 1 + token])
    signals = np.zeros((2, len(rows), value.shape[1] - 1))
    estimator = TOKEN_ESTIMATORS[settings.estimator]
    signals[:, response, token] = estimator(steps, tokens, settings.estimator_settings())
    return signals


def _weigh_tokens(
    rows: Sequence[ResponseRow],
    teacher: NDArray[np.float64],
    steps: StepArrays,
    advantage: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return advantages of tokens, weighted by `gear`, shape ``(responses, R)``."""
    step, response, token = _token_places(rows, "gear")
    if steps.nll is None:
        raise ConfigError("estimator gear: the agent records no log-probabilities of responses")
    logp = np.concatenate([row.response.behavior_logp for row in rows]).astype(np.float64)
    weighted = np.zeros(teacher.shape)
    weighted[response, token] = gear(advantage[step], response, logp, teacher[response, token])
    return weighted


def _token_places(rows: Sequence[ResponseRow], estimator: str) -> NDArray[np.int64]:
    """Return step, response and index in the response of all response tokens, ``(3, tokens)``."""
    if any(row.response.spans for row in rows):
        raise ConfigError(
            f"estimator {estimator}: it has advantages of tokens, and responses of this agent have "
            "spans with advantages of their own: choose another estimator"
        )
    lengths = [len(row.response.response_ids) for row in rows]
    response, token = np.nonzero(np.arange(max(lengths)) < np.array(lengths)[:, None])
    return np.stack([np.array([row.step for row in rows])[response], response, token])


def _score_blocks(
    rows: Sequence[ResponseRow],
    value: NDArray[np.float64],
    steps: StepArrays,
    settings: EstimatorSettings,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return advantages of tokens, shape ``(responses, R)``, and targets of values.

    Targets have the shape of `value`, with NaN where no value is trained. The value of a sub-goal
    is in column 0, that of a switch in column 1, and that of an action at the first token of its
    block. Only acting responses have targets.
    """
    acting = _acting(rows)
    spans = [{span.role: span for span in rows[row].response.spans} for row in acting]
    if not all("action" in by_role for by_role in spans):
        raise ConfigError(f"estimator {HIPER}: a response has no spans of sub-goals and actions")
    switches = [find_blocks(rows[row].response.completion).switches for row in acting]
    begins = (steps.time == 0) | np.array(switches)
    lengths = np.array([len(rows[row].response.response_ids) for row in acting])
    starts = np.array([by_role["action"].start for by_role in spans])
    place = 1 + np.minimum(np.maximum(starts, 1), lengths - 1)
    values = SegmentValues(value[acting, place], value[acting, 0], value[acting, 1])
    advantage, target = hiper(steps, begins, values, settings)
    targets = np.full(value.shape, np.nan)
    targets[acting[begins], 0] = target.high[begins]
    targets[acting, 1] = target.switch
    own_column = place > 1  # column 1 holds the target of the switch
    targets[acting[own_column], place[own_column]] = target.low[own_column]
    by_block = {"action": advantage.low, "subgoal": advantage.high, "switch": advantage.switch}
    return _credit_spans(rows, np.zeros(len(steps)), by_block), targets


def _rewards(trajectory: Trajectory, keep_penalty: float) -> list[float]:
    """Return the rewards, less `keep_penalty / steps` for each step that keeps its sub-goal."""
    kept = [
        any(span.role == "action" for span in turn.spans)
        and not find_blocks(turn.completion).switches
        for turn in trajectory.turns
    ]
    kept[0] = False
    each = keep_penalty / len(trajectory)
    return [step.reward - each * k for step, k in zip(trajectory.steps, kept, strict=True)]


def _acting(rows: Sequence[ResponseRow]) -> NDArray[np.intp]:
    """Return the row of each step's acting response, shape ``(steps,)``."""
    steps = np.array([row.step for row in rows])
    return np.flatnonzero(np.diff(steps, append=len(steps)))


def _nll(logps: Sequence[NDArray[Any]]) -> NDArray[np.float64] | None:
    """Return the mean negative log-probability of each response; None if some are unknown."""
    nll = np.array([-np.mean(logp, dtype=np.float64) if len(logp) else np.nan for logp in logps])
    return nll if np.isfinite(nll).all() else None


def stale_rate(trajectories: Sequence[Trajectory], current: str) -> float:
    """Return the share of responses whose first token is of an older version than `current`."""
    versions = [row.response.oldest_version for row in response_rows(trajectories)]
    return sum(version != current for version in versions) / len(versions)


def _strategy(trajectory: Trajectory) -> str | None:
    """Return the strategy written before the first step; None without one."""
    before = trajectory.turns[0].preceding
    return next((turn.completion for turn in before if turn.role == STRATEGY), None)


def _states(trajectory: Trajectory, anchor: str) -> list[Hashable]:
    """Return the keys of all states of a trajectory, the final one included."""
    if anchor == "observation":
        before = [turn.observation for turn in trajectory.turns]
        return [*before, trajectory.steps[-1].observation]
    infos = [trajectory.info, *(step.info for step in trajectory.steps)]
    if "state_hash" not in infos[0]:
        raise ConfigError(
            "algorithm.anchor=state needs an environment that reports info['state_hash']: set "
            "algorithm.anchor=observation"
        )
    return [info["state_hash"] for info in infos]
