"""Exact bias and variance of the estimators on a task with known advantages (Proposition 4.1).

An episode has four steps. The agent goes left or right, then to a light or a dark room, then into
a hall that looks the same on every path. In the hall it opens a chest, whose content depends on the
path, or leaves with a small reward. The policy in the hall depends on the path too, as for an agent
that remembers two turns. Steps in the hall share their state but differ in their history: this is
the context inconsistency that HGPO addresses.

The task has twelve trajectories. All groups of N trajectories are enumerated with their
probabilities, so means and variances are exact sums, not sample estimates.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement, product
from math import lgamma

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.advantages.contexts import context_levels
from hgpo_rllib.advantages.diagnostics import group_sizes
from hgpo_rllib.advantages.estimators import find_estimator
from hgpo_rllib.advantages.groups import group_advantage
from hgpo_rllib.advantages.settings import EstimatorSettings
from hgpo_rllib.advantages.steps import StepArrays

OPENS = {("left", "light"): 0.8, ("left", "dark"): 0.6}
OPENS |= {("right", "light"): 0.5, ("right", "dark"): 0.3}
"""Probability of opening the chest, by path; the two turns before it have probability 1/2 each."""
FINDS = {("left", "light"): 0.9, ("left", "dark"): 0.6}
FINDS |= {("right", "light"): 0.4, ("right", "dark"): 0.1}
"""Probability that the chest holds the reward, by path."""
CHEST, LEAVE = 10.0, 3.0  # rewards
LENGTH = 4  # steps of every trajectory
DEPTH = 2  # K: the two states before the hall identify the path
SETTINGS = EstimatorSettings(context_length=DEPTH, normalize="mean")
ESTIMATORS: tuple[str, ...] = ("grpo", "rloo", "gigpo", "hgpo_no_hierarchy", "hgpo", "hgpo_uniform")
ESTIMATORS += ("hgpo_base_group", "oracle", "hgpo_leave_one_out", "hgpo_uncertainty")
"""Estimators that compare within a task. A batch baseline has no meaning here: a batch holds an
enumeration of groups, not a sample."""
CHUNK = 10_000  # groups estimated at once; bounds memory
TOLERANCE = 1e-9  # when comparing sums of floats

Floats = NDArray[np.float64]
Estimate = Callable[[StepArrays], Floats]


@dataclass(frozen=True)
class Path:
    """One trajectory of the task."""

    probability: float
    anchors: tuple[str, ...]
    """State key of each step."""
    choices: tuple[str, ...]
    """History and action of each step; the true advantage is a function of these."""
    reward: float
    """Reward of the last step; all other rewards are 0."""

    def history(self, t: int) -> str:
        """Return the choices made before step `t`."""
        return self.choices[t - 1] if t else ""

    def returns(self) -> Floats:
        """Return the discounted return from each step on, shape ``(LENGTH,)``."""
        return np.float64(self.reward) * SETTINGS.gamma ** np.arange(LENGTH - 1, -1, -1.0)


@dataclass(frozen=True)
class Error:
    """Root mean square error of an estimate, over steps, split into bias and deviation."""

    bias: float
    deviation: float
    """Standard deviation, given history and action."""

    @property
    def rmse(self) -> float:
        """Root mean square of the total error."""
        return float(np.hypot(self.bias, self.deviation))


def paths() -> list[Path]:
    """Return all trajectories; their probabilities sum to 1."""
    result = []
    for way in product(("left", "right"), ("light", "dark")):
        opens, finds = OPENS[way], FINDS[way]
        for action, reward, chance in (
            ("open", CHEST, opens * finds),
            ("open", 0.0, opens * (1 - finds)),
            ("leave", LEAVE, 1 - opens),
        ):
            taken = (way[0], " ".join(way), " ".join((*way, "enter")), " ".join((*way, action)))
            result.append(Path(chance / 4, ("start", *way, "hall"), taken, reward))
    return result


def true_advantages(of: list[Path]) -> dict[str, float]:
    """Return ``Q(history, action) - V(history)`` of every choice, by enumeration."""
    steps = [(path, t) for path in of for t in range(LENGTH)]

    def mean_returns(key: Callable[[Path, int], str]) -> dict[str, float]:
        mass: dict[str, float] = defaultdict(float)
        total: dict[str, float] = defaultdict(float)
        for path, t in steps:
            mass[key(path, t)] += path.probability
            total[key(path, t)] += path.probability * path.returns()[t]
        return {name: total[name] / mass[name] for name in mass}

    q = mean_returns(lambda path, t: path.choices[t])
    v = mean_returns(Path.history)
    return {path.choices[t]: float(q[path.choices[t]] - v[path.history(t)]) for path, t in steps}


def groups(count: int, size: int, probability: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Enumerate the unordered groups of `size` out of `count` trajectories.

    Returns:
        Members, shape ``(groups, size)``, and probabilities, shape ``(groups,)``, summing to 1.
    """
    members = np.array(list(combinations_with_replacement(range(count), size)), np.int64)
    log = np.full(len(members), lgamma(size + 1))
    factorial = np.array([lgamma(n + 1) for n in range(size + 1)])
    for j in range(count):
        times = (members == j).sum(axis=1)
        log += times * np.log(probability[j]) - factorial[times]
    return members, np.exp(log)


def batches(size: int) -> Iterator[tuple[StepArrays, Floats, NDArray[np.int64]]]:
    """Yield every group of `size` trajectories as one task, in batches of up to `CHUNK` groups.

    Yields:
        The steps; the weight of each step (the probability of its group divided by `size`), shape
        ``(steps,)``; the index of its choice in the sorted `true_advantages`, shape ``(steps,)``.
    """
    all_paths = paths()
    names = sorted(true_advantages(all_paths))
    seen = sorted({anchor for path in all_paths for anchor in path.anchors})
    anchors = np.array([[seen.index(anchor) for anchor in path.anchors] for path in all_paths])
    choices = np.array([[names.index(choice) for choice in path.choices] for path in all_paths])
    returns = np.array([path.returns() for path in all_paths])
    members, chance = groups(len(all_paths), size, np.array([p.probability for p in all_paths]))
    for start in range(0, len(members), CHUNK):
        rows = members[start : start + CHUNK].reshape(-1)
        trajectory = np.repeat(np.arange(len(rows)), LENGTH)
        steps = StepArrays.from_columns(
            task=trajectory // size,
            trajectory=trajectory,
            time=np.tile(np.arange(LENGTH), len(rows)),
            anchor=anchors[rows].reshape(-1),
            step_return=returns[rows].reshape(-1),
            trajectory_return=returns[rows, -1].repeat(LENGTH),
        )
        weight = np.repeat(chance[start : start + CHUNK] / size, size * LENGTH)
        yield steps, weight, choices[rows].reshape(-1)


def level(k: int, leave_one_out: bool, steps: StepArrays) -> Floats:
    """Return the advantage at depth k; with `leave_one_out`, NaN for singletons at level K."""
    ids = list(context_levels(steps, DEPTH))
    advantage, size = group_advantage(ids[k], steps.step_return, "mean")
    if not leave_one_out:
        return advantage
    return np.where(group_sizes(ids[DEPTH]) > 1, advantage * size / np.maximum(size - 1, 1), np.nan)


def by_name(name: str, steps: StepArrays) -> Floats:
    """Apply a registered estimator without dividing by standard deviations, in units of reward."""
    return find_estimator(name)(steps, SETTINGS)


def non_singleton(name: str, steps: StepArrays) -> Floats:
    """Apply a registered estimator; NaN for singletons at level K."""
    *_, deepest = context_levels(steps, DEPTH)
    return np.where(group_sizes(deepest) > 1, by_name(name, steps), np.nan)


def errors(size: int, estimates: Mapping[str, Estimate], hall_only: bool) -> dict[str, Error]:
    """Return the error of each estimate in groups of `size`, ignoring steps where it is NaN."""
    truth = true_advantages(paths())
    names = sorted(truth)
    moments = {name: np.zeros((3, len(names))) for name in estimates}
    for steps, weight, choice in batches(size):
        for name, estimate in estimates.items():
            value = estimate(steps)
            counts = np.isfinite(value)
            if hall_only:
                counts &= steps.time == LENGTH - 1
            w, c, x = weight[counts], choice[counts], value[counts]
            for row, term in enumerate((w, w * x, w * x * x)):
                moments[name][row] += np.bincount(c, term, minlength=len(names))
    return {name: _error(m, np.array([truth[n] for n in names])) for name, m in moments.items()}


def _error(moments: Floats, truth: Floats) -> Error:
    mass, first, second = moments[:, moments[0] > 0]
    mean = first / mass
    bias = mean - truth[moments[0] > 0]
    variance = np.maximum(0.0, second / mass - mean**2)
    share = mass / mass.sum()
    return Error(float(np.sqrt(share @ bias**2)), float(np.sqrt(share @ variance)))


def correlation(size: int, first: Estimate, second: Estimate) -> float:
    """Return the correlation of two estimates in the hall, given history and action."""
    count = len(true_advantages(paths()))
    moments = np.zeros((6, count))
    for steps, weight, choice in batches(size):
        x, y = first(steps), second(steps)
        hall = np.isfinite(x) & np.isfinite(y) & (steps.time == LENGTH - 1)
        w, x, y, c = weight[hall], x[hall], y[hall], choice[hall]
        for row, term in enumerate((w, w * x, w * y, w * x * x, w * y * y, w * x * y)):
            moments[row] += np.bincount(c, term, minlength=count)
    mass = moments[0][moments[0] > 0]
    x, y, xx, yy, xy = moments[1:, moments[0] > 0] / mass
    covariance, *variances = (mass @ (xy - x * y), mass @ (xx - x * x), mass @ (yy - y * y))
    return float(covariance / np.sqrt(np.prod(variances)))


@dataclass(frozen=True)
class Study:
    """Errors in groups of one size, in units of reward."""

    group_size: int
    everywhere: dict[str, Error]
    """Errors of the registered estimators, over all steps."""
    levels: dict[str, Error]
    """Errors of single levels and of HGPO in the hall, as used in training."""
    grouped: dict[str, Error]
    """The same with leave-one-out baselines, over steps in non-singleton groups at the deepest
    level. This isolates context inconsistency from other effects of small groups (singletons get 0;
    the mean contains the step itself)."""
    claims: dict[str, dict[str, bool]]
    """Whether Proposition 4.1's assumptions and ordering hold for `levels` and for `grouped`."""


def study(group_size: int) -> Study:
    """Enumerate all groups of `group_size` trajectories.

    Raises:
        ValueError: `group_size` is below 2 or above 8 (the number of groups grows too fast).
    """
    if not 2 <= group_size <= 8:
        raise ValueError(f"the group size must be 2 to 8, got {group_size}")
    depths = range(DEPTH + 1)
    compared: dict[str, dict[str, Estimate]] = {
        "levels": {
            **{f"level {k}": partial(level, k, False) for k in depths},
            "hgpo": partial(by_name, "hgpo"),
        },
        "grouped": {
            **{f"level {k}": partial(level, k, True) for k in depths},
            "hgpo": partial(non_singleton, "hgpo_leave_one_out"),
            "hgpo_uncertainty": partial(non_singleton, "hgpo_uncertainty"),
        },
    }
    tables = {name: errors(group_size, of, hall_only=True) for name, of in compared.items()}
    claims = {
        name: proposition(
            tables[name], correlation(group_size, of["level 0"], of[f"level {DEPTH}"])
        )
        for name, of in compared.items()
    }
    registered = {name: partial(by_name, name) for name in ESTIMATORS}
    everywhere = errors(group_size, registered, hall_only=False)
    return Study(group_size, everywhere, tables["levels"], tables["grouped"], claims)


def proposition(of: dict[str, Error], correlation: float) -> dict[str, bool]:
    """Check which parts of Proposition 4.1 hold.

    It assumes that deeper levels have lower bias and higher variance and are uncorrelated. It
    concludes that the bias and the variance of HGPO are between those of level 0 and level K.

    Args:
        of: errors of the levels and of HGPO.
        correlation: between level 0 and level K.
    """
    bias = [of[f"level {k}"].bias for k in range(DEPTH + 1)]
    deviation = [of[f"level {k}"].deviation for k in range(DEPTH + 1)]
    return {
        "assumed: bias falls with k": bool(np.all(np.diff(bias) <= TOLERANCE)),
        "assumed: std rises with k": bool(np.all(np.diff(deviation) >= -TOLERANCE)),
        "assumed: levels uncorrelated": abs(correlation) <= TOLERANCE,
        "concluded: HGPO's bias between": _between(of["hgpo"].bias, bias),
        "concluded: HGPO's std between": _between(of["hgpo"].deviation, deviation),
    }


def _between(value: float, levels: list[float]) -> bool:
    low, high = sorted((levels[0], levels[-1]))
    return low - TOLERANCE <= value <= high + TOLERANCE
