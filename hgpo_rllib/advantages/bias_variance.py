"""Exact bias and variance of the estimators where the true advantage is known (Proposition 4.1).

The task has four decisions. The agent goes left or right, then to a light or a dark room, and from
either room into a hall that looks the same whatever came before. There it opens a chest, whose
content depends on the way taken, or leaves with a small reward. What the policy does in the hall
depends on the way too, as with an agent that remembers two turns. Steps in the hall thus share
their state and differ in their history: the context inconsistency that HGPO is about.

The task has twelve trajectories. All groups of N of them are enumerated with their probabilities,
so means and variances are exact sums and no samples.
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
"""Chance that the policy opens the chest after each way; both turns before are even."""
FINDS = {("left", "light"): 0.9, ("left", "dark"): 0.6}
FINDS |= {("right", "light"): 0.4, ("right", "dark"): 0.1}
"""Chance that the chest holds something after each way."""
CHEST, LEAVE = 10.0, 3.0  # rewards
LENGTH = 4  # steps of every trajectory
DEPTH = 2  # K: two states before the hall tell all ways apart
SETTINGS = EstimatorSettings(context_length=DEPTH, normalize="mean")
ESTIMATORS: tuple[str, ...] = ("grpo", "rloo", "gigpo", "hgpo_no_hierarchy", "hgpo", "hgpo_uniform")
ESTIMATORS += ("hgpo_base_group", "oracle", "hgpo_leave_one_out", "hgpo_uncertainty")
"""Those that compare within a task; a baseline over the batch has no meaning here, where all
possible groups are enumerated side by side."""
CHUNK = 10_000  # groups estimated at once; bounds memory
TOLERANCE = 1e-9  # of comparisons between sums of floats

Floats = NDArray[np.float64]
Estimate = Callable[[StepArrays], Floats]


@dataclass(frozen=True)
class Path:
    """One trajectory of the task."""

    probability: float
    anchors: tuple[str, ...]
    """What the agent sees, one a step."""
    choices: tuple[str, ...]
    """History and action, one a step: what a true advantage belongs to."""
    reward: float
    """Reward of the last step; the others have none."""

    def history(self, t: int) -> str:
        """The choices before step `t`."""
        return self.choices[t - 1] if t else ""

    def returns(self) -> Floats:
        """Discounted return from each step on, shape ``(LENGTH,)``."""
        return np.float64(self.reward) * SETTINGS.gamma ** np.arange(LENGTH - 1, -1, -1.0)


@dataclass(frozen=True)
class Error:
    """Root mean squares over steps of an estimate's distance from the true advantage."""

    bias: float
    deviation: float
    """Standard deviation, given history and action."""

    @property
    def rmse(self) -> float:
        """Of both together."""
        return float(np.hypot(self.bias, self.deviation))


def paths() -> list[Path]:
    """All trajectories; their probabilities sum to 1."""
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
    """``Q(history, action) - V(history)`` of every choice, by enumeration."""
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
    """All unordered groups of `size` out of `count` trajectories, and their probabilities.

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
    """Every group of `size` trajectories as a task: steps, their weights, and their choices.

    Yields:
        The steps; the probability that a given member is this step's, shape ``(steps,)``; the
        index of its choice in the sorted `true_advantages`, shape ``(steps,)``.
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
    """Advantage at depth k alone; with `leave_one_out` NaN where the step is alone at level K."""
    ids = list(context_levels(steps, DEPTH))
    advantage, size = group_advantage(ids[k], steps.step_return, "mean")
    if not leave_one_out:
        return advantage
    return np.where(group_sizes(ids[DEPTH]) > 1, advantage * size / np.maximum(size - 1, 1), np.nan)


def by_name(name: str, steps: StepArrays) -> Floats:
    """A registered estimator, without division by standard deviations: in units of reward."""
    return find_estimator(name)(steps, SETTINGS)


def non_singleton(name: str, steps: StepArrays) -> Floats:
    """A registered estimator, NaN where the step is alone at level K."""
    *_, deepest = context_levels(steps, DEPTH)
    return np.where(group_sizes(deepest) > 1, by_name(name, steps), np.nan)


def errors(size: int, estimates: Mapping[str, Estimate], hall_only: bool) -> dict[str, Error]:
    """Error of each estimate in groups of `size`; steps for which it is NaN do not count."""
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
    """Correlation of two estimates in the hall, given history and action."""
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
    """Of the registered estimators, over all steps."""
    levels: dict[str, Error]
    """Of single levels and of HGPO, in the hall, as they are used in training."""
    grouped: dict[str, Error]
    """The same with leave-one-out baselines, over steps in non-singleton groups at the deepest
    level: context inconsistency without what small groups do besides (no comparison, a mean with
    oneself)."""
    claims: dict[str, dict[str, bool]]
    """Proposition 4.1's assumptions and ordering for `levels` and for `grouped`."""


def study(group_size: int) -> Study:
    """Enumerate all groups of `group_size` trajectories.

    Raises:
        ValueError: for a size below 2, or above 8 (the number of groups explodes).
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
    """Which parts of Proposition 4.1 hold.

    It supposes that deeper levels are less biased, vary more, and are not correlated; it concludes
    that HGPO lies between level 0 and level K in bias and in variance.

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
