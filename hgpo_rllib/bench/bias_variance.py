"""Exact bias and variance of the estimators on a task with known advantages (Proposition 4.1).

An episode has four steps. The agent goes left or right, then to a light or a dark room, then into
a hall that looks the same on every path. In the hall it opens a chest, whose content depends on the
path, or leaves with a small reward. The policy in the hall depends on the path too, as for an agent
that remembers two turns. Steps in the hall share their state but differ in their history: this is
the context inconsistency that HGPO addresses.

The task has twelve trajectories. All groups of N trajectories are enumerated with their
probabilities, so means and variances are exact sums, not sample estimates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import multinomial

from hgpo_rllib.advantages import EstimatorSettings, StepArrays, find_estimator
from hgpo_rllib.advantages.groups import compare_levels, leave_one_out
from hgpo_rllib.errors import ConfigError

OPENS = {
    ("left", "light"): 0.8,
    ("left", "dark"): 0.6,
    ("right", "light"): 0.5,
    ("right", "dark"): 0.3,
}
"""Probability of opening the chest, by path; the two turns before it have probability 1/2 each."""
FINDS = {
    ("left", "light"): 0.9,
    ("left", "dark"): 0.6,
    ("right", "light"): 0.4,
    ("right", "dark"): 0.1,
}
"""Probability that the chest holds the reward, by path."""
CHEST, LEAVE = 10.0, 3.0  # rewards
LENGTH = 4  # steps of every trajectory
DEPTH = 2  # K: the two states before the hall identify the path
SETTINGS = EstimatorSettings(context_length=DEPTH, normalize="mean")
ESTIMATORS: tuple[str, ...] = ("grpo", "rloo", "gigpo", "hgpo_no_hierarchy", "hgpo", "hgpo_uniform")
ESTIMATORS += ("hgpo_base_group", "oracle", "oracle_else_step")
ESTIMATORS += ("hgpo_leave_one_out", "hgpo_uncertainty", "hgpo_gae")
ESTIMATORS += ("graphgpo", "g2po", "gagpo", "salt", "gaca")
"""Estimators that compare within a task. A batch baseline, as in `empg`, has no meaning here: a
batch holds an enumeration of groups, not a sample. `oracle_context` equals `oracle`, as K covers
the history."""
LAMBDAS = (0.8, 0.5)  # of `hgpo_gae`, besides the default 0.95
PARTS = {
    "everywhere": "all steps, as used in training",
    "levels": "steps in the hall, as used in training",
    "grouped": "steps in the hall in non-singleton groups at the deepest level, leave-one-out",
}
CLAIMS = "Proposition 4.1 in the hall: levels as used in training, and in non-singleton groups"
COVARIANCE = "level 0 times level K"
CHUNK = 10_000  # groups estimated at once; bounds memory
TOLERANCE = 1e-9  # when comparing sums of floats


def bench_bias_variance(group_sizes: Sequence[int]) -> dict[str, list[dict[str, Any]]]:
    """Return tables with the errors of the estimates, in units of reward, and with the claims.

    Raises:
        ConfigError: a group size is below 2 or above 8 (the number of groups grows too fast).
    """
    studies = {f"N={size}": study(size) for size in group_sizes}
    tables = {}
    for part, title in PARTS.items():
        wide = pd.concat({size: errors[part] for size, errors in studies.items()}, axis=1)
        wide.columns = [f"{size} {measure}" for size, measure in wide.columns]
        wide = wide.drop(index=COVARIANCE, errors="ignore")
        tables[title] = wide.rename_axis("estimate").reset_index().to_dict("records")
    claims = {
        f"{size} {part}": proposition(errors[part])
        for part in ("levels", "grouped")
        for size, errors in studies.items()
    }
    words = pd.DataFrame(claims).replace({True: "holds", False: "no"})
    tables[CLAIMS] = words.rename_axis("claim").reset_index().to_dict("records")
    return tables


def trajectories() -> pd.DataFrame:
    """Return the steps of all trajectories, ordered by trajectory and time.

    Columns: ``probability`` and ``reward`` of the trajectory; ``anchor``, ``action`` and ``after``,
    the next anchor; ``choice``, the history and the action, as text; ``nll``, the action's negative
    log-probability; ``value``, the discounted return; ``truth``, the advantage
    ``Q(history, action) - V(history)``.
    """
    rows = []
    for way in product(("left", "right"), ("light", "dark")):
        opens, finds = OPENS[way], FINDS[way]
        for action, reward, chance in (
            ("open", CHEST, opens * finds),
            ("open", 0.0, opens * (1 - finds)),
            ("leave", LEAVE, 1 - opens),
        ):
            choices = (way[0], " ".join(way), " ".join((*way, "enter")), " ".join((*way, action)))
            anchors, actions = ("start", *way, "hall", f"found {reward}"), (*way, "enter", action)
            chosen = -np.log([0.5, 0.5, 1.0, opens if action == "open" else 1 - opens])
            for t in range(LENGTH):
                choice, history = choices[t], choices[t - 1] if t else ""
                value = reward * SETTINGS.gamma ** (LENGTH - 1 - t)
                step = (anchors[t], actions[t], anchors[t + 1], history, choice, chosen[t], value)
                rows.append((chance / 4, reward, *step))
    names = "probability reward anchor action after history choice nll value"
    steps = pd.DataFrame(rows, columns=names.split())
    mass = steps["probability"]
    q, v = (
        (mass * steps["value"]).groupby(steps[key]).transform("sum")
        / mass.groupby(steps[key]).transform("sum")
        for key in ("choice", "history")
    )
    return steps.assign(truth=q - v)


def groups(size: int, probability: NDArray[np.float64]) -> tuple[NDArray, NDArray[np.float64]]:
    """Enumerate the unordered groups of `size` trajectories with these probabilities.

    Returns:
        Members, shape ``(groups, size)``, and probabilities, shape ``(groups,)``, summing to 1.
    """
    count = len(probability)
    members = np.array(list(combinations_with_replacement(range(count), size)))
    times = np.stack([(members == j).sum(axis=1) for j in range(count)], axis=1)
    return members, multinomial.pmf(times, size, probability)


def estimates(steps: StepArrays) -> pd.DataFrame:
    """Return the estimates of all steps, one column per part and estimate; NaN if not counted."""
    levels = list(compare_levels(steps, SETTINGS))
    registered = {name: find_estimator(name)(steps, SETTINGS) for name in ESTIMATORS}
    for gae_lambda in LAMBDAS:
        settings = replace(SETTINGS, gae_lambda=gae_lambda)
        registered[f"hgpo_gae, λ={gae_lambda}"] = find_estimator("hgpo_gae")(steps, settings)
    as_used = {f"level {k}": level.advantage for k, level in enumerate(levels)}
    without_step = {
        f"level {k}": leave_one_out(level.advantage, level.size) for k, level in enumerate(levels)
    }
    parts = {
        "levels": as_used | {"hgpo": registered["hgpo"]},
        "grouped": without_step
        | {"hgpo": registered["hgpo_leave_one_out"]}
        | {"hgpo_uncertainty": registered["hgpo_uncertainty"]},
    }
    hall = steps.time == LENGTH - 1
    counted = {"levels": hall, "grouped": hall & (levels[-1].size > 1)}
    columns = {("everywhere", name): values for name, values in registered.items()}
    for part, by_name in parts.items():
        products = {COVARIANCE: by_name["level 0"] * by_name[f"level {DEPTH}"]}
        for name, values in (by_name | products).items():
            columns[part, name] = np.where(counted[part], values, np.nan)
    return pd.DataFrame(columns)


def moments(size: int, steps: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield sums over all groups, by choice: mass, first and second moment of each estimate."""

    def table(name: str) -> NDArray:
        return steps[name].to_numpy().reshape(-1, LENGTH)

    members, chance = groups(size, table("probability")[:, 0])
    for start in range(0, len(members), CHUNK):
        rows = members[start : start + CHUNK].reshape(-1)
        trajectory = np.repeat(np.arange(len(rows)), LENGTH)
        batch = StepArrays.from_columns(
            task=trajectory // size,
            trajectory=trajectory,
            time=np.tile(np.arange(LENGTH), len(rows)),
            anchor=table("anchor")[rows].reshape(-1),
            step_return=table("value")[rows].reshape(-1),
            trajectory_return=table("reward")[rows].reshape(-1),
            action=table("action")[rows].reshape(-1),
            next_anchor=table("after")[rows].reshape(-1),
            won=table("reward")[rows].reshape(-1) == CHEST,
            nll=table("nll")[rows].reshape(-1),
        )
        weight = np.repeat(chance[start : start + CHUNK] / size, size * LENGTH)
        found = estimates(batch)
        terms = {"mass": found.notna(), "first": found, "second": found**2}
        weighted = {name: values.mul(weight, axis=0) for name, values in terms.items()}
        yield pd.concat(weighted, axis=1).groupby(table("choice")[rows].reshape(-1)).sum()


def study(group_size: int) -> dict[str, pd.DataFrame]:
    """Enumerate all groups of `group_size` trajectories.

    Returns:
        By part, the ``bias``, ``std`` and ``rmse`` of each estimate: root mean squares over steps,
        bias and standard deviation given history and action. The row `COVARIANCE` has the
        covariance of the first and the last level as ``bias``.
    """
    if not 2 <= group_size <= 8:
        raise ConfigError(f"--group-size: the group size must be 2 to 8, got {group_size}")
    steps = trajectories()
    truth = steps.groupby("choice")["truth"].first()
    total = reduce(lambda a, b: a.add(b, fill_value=0), moments(group_size, steps))
    mass, share = total["mass"], total["mass"] / total["mass"].sum()
    mean = total["first"] / mass
    variance = (total["second"] / mass - mean**2).clip(lower=0)
    bias = (share * mean.sub(truth, axis=0) ** 2).sum() ** 0.5
    errors = pd.DataFrame({"bias": bias, "std": (share * variance).sum() ** 0.5})
    for part in ("levels", "grouped"):
        levels = mean[part]
        moment = levels[COVARIANCE] - levels["level 0"] * levels[f"level {DEPTH}"]
        errors.loc[(part, COVARIANCE), "bias"] = (share[part, COVARIANCE] * moment).sum()
    errors["rmse"] = np.hypot(errors["bias"], errors["std"])
    return {part: errors.loc[part] for part in PARTS}


def proposition(errors: pd.DataFrame) -> dict[str, bool]:
    """Check each part of Proposition 4.1 by itself for the errors of one part of a `study`.

    It assumes ``b_0 >= b_1 >= … >= b_K`` for the biases of the levels, ``v_0 <= v_1 <= … <= v_K``
    for their variances, and levels that are uncorrelated. It concludes
    ``b_K <= bias <= b_0`` and ``v_0 / (K + 1) <= variance <= v_K`` for HGPO.

    Bias is the absolute value that the study measures, variance is the square of its ``std``.
    """
    bias, variance = errors["bias"], errors["std"] ** 2
    b, v = (column[[f"level {k}" for k in range(DEPTH + 1)]] for column in (bias, variance))
    checks = {
        "assumed: bias falls with k": (b.diff().dropna() <= TOLERANCE).all(),
        "assumed: variance rises with k": (v.diff().dropna() >= -TOLERANCE).all(),
        "assumed: levels uncorrelated": abs(bias[COVARIANCE]) <= TOLERANCE,
        "concluded: b_K <= bias of HGPO": b.iloc[-1] <= bias["hgpo"] + TOLERANCE,
        "concluded: bias of HGPO <= b_0": bias["hgpo"] <= b.iloc[0] + TOLERANCE,
        "concluded: v_0/(K+1) <= variance": v.iloc[0] / (DEPTH + 1) <= variance["hgpo"] + TOLERANCE,
        "concluded: variance <= v_K": variance["hgpo"] <= v.iloc[-1] + TOLERANCE,
    }
    return {claim: bool(holds) for claim, holds in checks.items()}
