"""The other estimators, each compared with its definition in plain loops."""

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from hgpo_rllib.advantages import ESTIMATORS, EstimatorSettings, StepArrays, find_estimator
from hgpo_rllib.advantages.baselines import gae
from tests.paths import ROOT
from tests.unit.advantages.advantage_batches import (
    BATCHES,
    SETTINGS,
    Trajectory,
    arrays,
    by_trajectory,
    centered,
    history,
    within,
)

MEAN = EstimatorSettings(normalize="mean")


@given(BATCHES, SETTINGS)
def test_trajectories_and_states(batch, settings) -> None:
    """GRPO compares whole trajectories; GiGPO adds the weighted comparison by state."""
    steps = arrays(batch)
    whole = np.array(by_trajectory(batch, settings))
    state = np.array(centered(batch, settings, lambda task, states, t: (task, states[t])))
    got = {name: find_estimator(name)(steps, settings) for name in ("grpo", "gigpo")}
    np.testing.assert_allclose(got["grpo"], whole, atol=1e-9)
    np.testing.assert_allclose(got["gigpo"], whole + settings.step_weight * state, atol=1e-9)


def of_whole_histories(batch, settings) -> Any:
    """Return advantages that compare steps whose whole histories are equal."""
    return centered(batch, settings, lambda task, states, t: (task, *states[: t + 1]))


def of_contexts(batch, settings) -> Any:
    """Return advantages over equal last K + 1 states; with `released`, 0 for steps before K."""
    depth = settings.context_length
    expected = np.array(centered(batch, settings, history(depth)))
    if settings.contexts == "released":
        early = [t < depth for _, states, _ in batch for t in range(len(states))]
        expected[early] = 0.0
    return expected


def of_whole_histories_else_states(batch, settings) -> Any:
    """Return the whole-history advantage if another step shares the history, else Eq. 2."""
    whole = of_whole_histories(batch, settings)
    state = centered(batch, settings, lambda task, states, t: (task, states[t]))
    shared = others_of(batch, lambda task, states, t: (task, *states[: t + 1]))
    return [a if others else b for a, b, others in zip(whole, state, shared, strict=True)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("oracle", of_whole_histories),
        ("oracle_context", of_contexts),
        ("oracle_else_step", of_whole_histories_else_states),
    ],
)
@given(BATCHES, SETTINGS)
def test_oracles(name, expected, batch, settings) -> None:
    got = find_estimator(name)(arrays(batch), settings)
    np.testing.assert_allclose(got, expected(batch, settings), atol=1e-9)


@given(BATCHES, SETTINGS)
def test_the_whole_batch(batch, settings) -> None:
    """REINFORCE compares each step with all steps of all tasks."""
    got = find_estimator("reinforce")(arrays(batch), settings)
    np.testing.assert_allclose(got, centered(batch, settings, lambda *_: 0), atol=1e-9)


@given(BATCHES)
def test_leave_one_out_of_trajectories(batch) -> None:
    """RLOO subtracts the mean return of the task's other trajectories."""
    expected = []
    for i, (task, _, values) in enumerate(batch):
        others = [v[0] for j, (other, _, v) in enumerate(batch) if other == task and j != i]
        expected += [values[0] - np.mean(others) if others else 0.0 for _ in values]
    got = find_estimator("rloo")(arrays(batch), MEAN)
    np.testing.assert_allclose(got, expected, atol=1e-9)


def others_of(
    batch: list[Trajectory], key: Callable[[int, list[int], int], Hashable]
) -> list[list[float]]:
    """Return, for each step, the returns of the other steps with its key."""
    keys = [(key(task, s, t), r) for task, s, rs in batch for t, r in enumerate(rs)]
    return [
        [r for j, (k, r) in enumerate(keys) if k == own and j != i]
        for i, (own, _) in enumerate(keys)
    ]


@pytest.mark.parametrize(
    ("name", "of_turns"),
    [
        ("sdar", "grpo"),
        ("gear", "grpo"),
        ("ppo_tokens", "ppo"),
        ("vetta", "ppo"),
        ("hiper", "ppo"),
    ],
)
def test_advantages_of_turns(name: str, of_turns: str) -> None:
    """What is added for tokens or in the loss does not change the advantages of turns."""
    assert find_estimator(name) is find_estimator(of_turns)


def level_of(k: int, contexts: str) -> Callable[[int, list[int], int], Hashable]:
    """Return the key function of level k; with `released`, steps before k are alone."""
    whole = history(k)
    return lambda task, states, t: (
        whole(task, states, t) if contexts == "paper" or t >= k else object()
    )


@pytest.mark.parametrize("name", ["hgpo_base_group", "hgpo_leave_one_out"])
@given(BATCHES, SETTINGS)
def test_variants_of_the_hierarchy(name, batch, settings) -> None:
    """Eq. 1 is one more level of weight 1, or each level leaves out the step itself."""
    offset = 1 if settings.contexts == "paper" else 2
    terms = [(1.0, by_trajectory(batch, settings))] if name == "hgpo_base_group" else []
    for k in range(settings.context_length + 1):
        key = level_of(k, settings.contexts)
        own = centered(batch, settings, key)
        if name == "hgpo_leave_one_out":
            sizes = [len(others) + 1 for others in others_of(batch, key)]
            own = [a * n / max(n - 1, 1) for a, n in zip(own, sizes, strict=True)]
        terms.append(((k + offset) ** settings.weight_alpha, own))
    weights = np.array([[weight] for weight, _ in terms])
    values = np.array([own for _, own in terms])
    total = (weights * (np.abs(values) > 1e-12)).sum(0)
    expected = np.divide((weights * values).sum(0), total, where=total > 0, out=0 * total)
    got = find_estimator(name)(arrays(batch), settings)
    np.testing.assert_allclose(got, expected, atol=1e-9)


@given(BATCHES)
def test_leave_one_out_at_every_level(batch) -> None:
    """Each level compares with the other steps; zeros are left out, weights are 1 : 2 : 3."""
    returns = [value for _, _, values in batch for value in values]
    numerator, denominator = np.zeros(len(returns)), np.zeros(len(returns))
    for k in range(3):
        for i, others in enumerate(others_of(batch, history(k))):
            advantage = returns[i] - np.mean(others) if others else 0.0
            numerator[i] += (k + 1) * advantage
            denominator[i] += (k + 1) * (abs(advantage) > 1e-12)
    got = find_estimator("hgpo_leave_one_out")(arrays(batch), MEAN)
    np.testing.assert_allclose(got, numerator / np.maximum(denominator, 1), atol=1e-9)


def shrinkage_by_definition(
    parent: list[Hashable], group: list[Hashable], values: list[float], i: int
) -> float:
    """Return the shrinkage B of step i, from the formulas of the estimator's docstring."""
    members = defaultdict(list)
    for p, c, value in zip(parent, group, values, strict=True):
        if p == parent[i] and c is not None:
            members[c].append(value)
    n, g = sum(map(len, members.values())), len(members)
    own = len(members[group[i]])
    if own == 1 or g == 1:
        return 1.0  # a single member, or a single group
    mean = np.mean([v for part in members.values() for v in part])
    within = sum(((np.array(part) - np.mean(part)) ** 2).sum() for part in members.values())
    noise = within / (n - g)
    between = sum(len(part) * (np.mean(part) - mean) ** 2 for part in members.values()) / (g - 1)
    size = (n - sum(len(part) ** 2 for part in members.values()) / n) / (g - 1)
    spread = max(0.0, (between - noise) / size)
    return noise / (own - 1) / (noise / (own - 1) + spread) if spread > 1e-12 else 1.0


@given(BATCHES, SETTINGS)
def test_uncertainty_by_definition(batch, settings) -> None:
    """Level by level, A_k = (1 - B) * (R - mean of the others) + B * A_(k-1)."""
    returns = [value for _, _, values in batch for value in values]
    keys = [
        [
            history(k)(task, states, t) if t >= k or settings.contexts == "paper" else None
            for task, states, _ in batch
            for t in range(len(states))
        ]
        for k in range(settings.context_length + 1)
    ]
    expected = np.zeros(len(returns))
    for k, level in enumerate(keys):
        for i, key in enumerate(level):
            if key is None:  # no group: keep the estimate of the level before
                continue
            others = [returns[j] for j, other in enumerate(level) if other == key and j != i]
            own = returns[i] - np.mean(others) if others else 0.0
            b = shrinkage_by_definition(keys[k - 1], level, returns, i) if k else 0.0
            expected[i] = (1 - b) * own + b * expected[i]
    got = find_estimator("hgpo_uncertainty")(arrays(batch), replace(settings, normalize="mean"))
    np.testing.assert_allclose(got, expected, atol=1e-9)


def two_histories(first: list[float], second: list[float]) -> StepArrays:
    """Return steps of state 9, after state 0 with the first returns and after state 1 else."""
    return arrays(
        [(0, [0, 9], [0.0, value]) for value in first]
        + [(0, [1, 9], [0.0, value]) for value in second]
    )


def test_uncertainty_trusts_histories_that_decide() -> None:
    """If returns depend on the history alone, only steps of the same history are compared."""
    got = find_estimator("hgpo_uncertainty")(two_histories([4.0, 4.0], [8.0, 8.0]), MEAN)
    np.testing.assert_allclose(got, 0.0)
    got = find_estimator("hgpo_leave_one_out")(two_histories([4.0, 4.0], [8.0, 8.0]), MEAN)
    assert np.abs(got).max() > 2.6  # fixed weights still compare with the other history


def test_uncertainty_pools_histories_that_do_not_matter() -> None:
    """If both histories have equal means, the baseline is the mean of all other steps."""
    got = find_estimator("hgpo_uncertainty")(two_histories([2.0, 6.0], [2.0, 6.0]), MEAN)
    expected = [2 - 14 / 3, 6 - 10 / 3, 2 - 14 / 3, 6 - 10 / 3]
    np.testing.assert_allclose(got[1::2], expected)


def test_uncertainty_at_a_level_that_splits_no_group() -> None:
    """A level that splits no group leaves the advantages exactly unchanged."""
    steps = two_histories([1.0, 2, 4, 8, 16, 32], [3.0, 5, 7, 9, 11, 13])
    got = [
        find_estimator("hgpo_uncertainty")(steps, replace(MEAN, context_length=depth))
        for depth in (1, 2)
    ]
    np.testing.assert_array_equal(*got)


def test_uncertainty_in_units_of_the_state() -> None:
    """`mean_std` divides by the standard deviation of all steps that share the state."""
    steps = two_histories([2.0, 6.0], [3.0, 9.0])
    plain = find_estimator("hgpo_uncertainty")(steps, MEAN)[1::2]
    scaled = find_estimator("hgpo_uncertainty")(steps, EstimatorSettings())[1::2]
    np.testing.assert_allclose(scaled, plain / (np.std([2.0, 6.0, 3.0, 9.0]) + 1e-6))


@given(BATCHES, SETTINGS)
def test_generalized_advantages_with_values_of_histories(batch, settings) -> None:
    """A step's value is a weighted mean of its groups' means, or its own return if it is alone."""
    returns = [value for _, _, values in batch for value in values]
    offset = 1 if settings.contexts == "paper" else 2
    numerator, denominator = np.zeros(len(returns)), np.zeros(len(returns))
    for k in range(settings.context_length + 1):
        weight = (k + offset) ** settings.weight_alpha
        for i, others in enumerate(others_of(batch, level_of(k, settings.contexts))):
            if others:
                numerator[i] += weight * np.mean([returns[i], *others])
                denominator[i] += weight
    value = np.where(denominator > 0, numerator / np.maximum(denominator, 1), returns)
    steps = arrays(batch)
    raw = gae(steps, value, settings.gamma, settings.gae_lambda)
    tasks = [task for task, states, _ in batch for _ in states]
    got = find_estimator("hgpo_gae")(steps, replace(settings, normalize="mean"))
    np.testing.assert_allclose(got, within(tasks, raw.tolist(), "mean"), atol=1e-7)


@given(BATCHES, SETTINGS)
def test_values_shrunk_towards_those_of_shorter_histories(batch, settings) -> None:
    """A trajectory's own steps count in its values only through the batch's mean."""
    steps = [
        (i, t, task, states, value)
        for i, (task, states, values) in enumerate(batch)
        for t, value in enumerate(values)
    ]
    expected = []
    for i, t, task, states, _ in steps:
        value = np.mean([other for *_, other in steps])
        for k in range(settings.context_length + 1):
            history = [None] * max(0, k - t) + states[max(0, t - k) : t + 1]
            others = [
                other
                for j, u, its_task, its_states, other in steps
                if (j != i and its_task == task)
                and [None] * max(0, k - u) + its_states[max(0, u - k) : u + 1] == history
            ]
            value = (sum(others) + 2 * value) / (len(others) + 2)
        expected.append(value)
    raw = gae(arrays(batch), np.array(expected), settings.gamma, settings.gae_lambda)
    got = find_estimator("hgpo_shrinkage")(arrays(batch), replace(settings, normalize="mean"))
    np.testing.assert_allclose(got, raw - raw.mean(), atol=1e-7)


@pytest.mark.parametrize(
    ("name", "by_task"),
    [("hgpo_gae", True), ("gagpo", True), ("hgpo_shrinkage", False), ("ppo", False)],
)
def test_generalized_advantages_of_two_tasks(name: str, by_task: bool) -> None:
    """The standard deviation of `mean_std` is that of each task, or of the batch."""
    steps = arrays([(task, [0, 9], [0.0, (1 + task) * v]) for task in (0, 1) for v in (2.0, 6.0)])
    plain, scaled = (find_estimator(name)(steps, s) for s in (MEAN, EstimatorSettings()))
    assert abs(plain[:4].std() / plain[4:].std() - 1) > 0.1
    for part in np.split(np.arange(8), 2) if by_task else [np.arange(8)]:
        np.testing.assert_allclose(scaled[part], plain[part] / (plain[part].std() + 1e-6))


def test_base_group_by_hand() -> None:
    """The comparison of trajectories (Eq. 1) is added as one more level with weight 1."""
    steps = arrays([(0, [5], [8.0]), (0, [5], [4.0])])
    steps = replace(steps, trajectory_return=np.array([2.0, 10.0]))
    got = find_estimator("hgpo_base_group")(steps, replace(MEAN, context_length=1))
    np.testing.assert_allclose(got, [(-4 + 2 + 2 * 2) / 4, (4 - 2 - 2 * 2) / 4])


@given(BATCHES, SETTINGS)
def test_gae_by_definition(batch, settings) -> None:
    """GAE equals the discounted sum of temporal differences."""
    steps = arrays(batch)
    value = np.cos(np.arange(len(steps)))
    gamma, lam = settings.gamma, settings.gae_lambda
    expected: list[float] = []
    for _, _, returns in batch:
        own = [*value[len(expected) : len(expected) + len(returns)], 0.0]
        future = [*returns, 0.0]
        rewards = [future[t] - gamma * future[t + 1] for t in range(len(returns))]
        deltas = [r + gamma * own[t + 1] - own[t] for t, r in enumerate(rewards)]
        expected += [
            sum((gamma * lam) ** j * delta for j, delta in enumerate(deltas[t:]))
            for t in range(len(returns))
        ]
    np.testing.assert_allclose(gae(steps, value, gamma, lam), expected, atol=1e-9)
    np.testing.assert_allclose(gae(steps, value, gamma, 1.0), steps.step_return - value, atol=1e-9)


@given(BATCHES, SETTINGS)
def test_ppo_uses_the_critic_or_a_table(batch, settings) -> None:
    """PPO uses given values; without them, values are mean returns by task and state."""
    steps = arrays(batch)
    settings = replace(settings, normalize="mean")
    table = find_estimator("ppo")(steps, replace(settings, gae_lambda=1.0))
    expected = centered(batch, settings, lambda task, states, t: (task, states[t]))
    np.testing.assert_allclose(table, expected, atol=1e-9)
    value = np.sin(np.arange(len(steps)))
    got = find_estimator("ppo")(replace(steps, value=value), settings)
    raw = gae(steps, value, settings.gamma, settings.gae_lambda)
    np.testing.assert_allclose(got, raw - raw.mean(), atol=1e-9)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_of_no_steps(name: str) -> None:
    """A batch without steps gives an empty array of advantages."""
    assert find_estimator(name)(arrays([]), EstimatorSettings()).shape == (0,)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_leaves_its_input_alone(name: str) -> None:
    """Estimators accept read-only arrays, so they never write to their input."""
    steps = arrays([(0, [0, 9], [1.0, 8.0]), (0, [0, 9], [2.0, 4.0]), (1, [9], [3.0])])
    for column in vars(steps).values():
        if isinstance(column, np.ndarray):
            column.setflags(write=False)
    assert np.isfinite(find_estimator(name)(steps, EstimatorSettings())).all()


def test_the_example_of_the_docs() -> None:
    """The example runs unchanged, and the winner's steps get larger advantages."""
    page = (ROOT / "docs/advantages.md").read_text()
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    won, lost = names["advantage"].reshape(2, 2)
    assert (won > lost).all()


def test_an_unknown_name_lists_the_known_ones() -> None:
    """The error lists the known estimators."""
    with pytest.raises(ValueError, match="unknown estimator 'hgop'; known: hgpo, gigpo, grpo,"):
        find_estimator("hgop")
