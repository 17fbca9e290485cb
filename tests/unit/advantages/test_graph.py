"""Estimators on the graph of transitions, each compared with its definition in plain loops."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_rllib.advantages import EstimatorSettings, StepArrays, find_estimator
from hgpo_rllib.advantages.baselines import gae
from hgpo_rllib.advantages.graph import success_distance
from tests.unit.advantages.advantage_batches import (
    BATCHES,
    SETTINGS,
    Trajectory,
    action,
    arrays,
    by_trajectory,
    columns,
    following,
    history,
    transitions,
    within,
    won,
)

GRAPH = st.builds(replace, SETTINGS, distance_discount=st.sampled_from([0.1, 0.2, 0.5]))


def distances(batch: list[Trajectory]) -> list[int]:
    """Return the distance from each next state to success, by breadth-first search."""
    edges = defaultdict(set)
    for task, states, _ in batch:
        for t, (state, after) in enumerate(zip(states, following(states), strict=True)):
            success = won(states) and t == len(states) - 1
            edges[task].add((state, "success" if success else after))
    found = []
    for task, states, _ in batch:
        distance, frontier = {"success": 0}, ["success"]
        while frontier:
            node = frontier.pop(0)
            for source, target in edges[task]:
                if target == node and source not in distance:
                    distance[source] = distance[node] + 1
                    frontier.append(source)
        far = max(distance.values()) + 1
        after = following(states)
        if won(states):
            after[-1] = "success"
        found += [distance.get(state, far) for state in after]
    return found


def over_task(batch: list[Trajectory], settings: EstimatorSettings) -> np.ndarray:
    tasks = [task for task, states, _ in batch for _ in states]
    returns = [values[0] for _, _, values in batch for _ in values]
    return within(tasks, returns, settings.normalize)


@given(BATCHES)
def test_distance_to_success(batch) -> None:
    np.testing.assert_array_equal(success_distance(arrays(batch)), distances(batch))


@given(BATCHES, GRAPH)
def test_graphgpo(batch, settings) -> None:
    """A step's penalty counts only in the comparison by state."""
    states = [(task, state) for task, path, _ in batch for state in path]
    penalty = [0.1 * action(value) for _, _, returns in batch for value in returns]
    distance = zip(distances(batch), penalty, strict=True)
    values = [10 * settings.distance_discount**d - cost for d, cost in distance]
    expected = over_task(batch, settings)
    expected += settings.step_weight * within(states, values, settings.normalize)
    steps = replace(arrays(batch), penalty=np.array(penalty))
    got = find_estimator("graphgpo")(steps, settings)
    np.testing.assert_allclose(got, expected, atol=1e-7)


@given(BATCHES, GRAPH)
def test_g2po(batch, settings) -> None:
    """A step's penalty counts only in the comparison by state."""
    visits = defaultdict(list)
    for task, states, _ in batch:
        for t, state in enumerate(states):
            visits[task, state].append(
                settings.gamma ** (len(states) - t) * (10 if won(states) else 0)
            )
    tasks, nodes, after, gain = [], [], [], []
    for task, states, _ in batch:
        end = 10.0 if won(states) else 0.0
        values = [float(np.mean(visits[task, state])) for state in states]
        tasks += [task] * len(states)
        nodes += [(task, state) for state in states]
        after += [*values[1:], end]
        gain += [b - a for a, b in zip(values, [*values[1:], end], strict=True)]
    penalty = np.array([0.1 * action(value) for _, _, returns in batch for value in returns])
    expected = over_task(batch, settings) + settings.step_weight * (
        within(nodes, list(np.array(after) - penalty), settings.normalize)
        + within(tasks, gain, settings.normalize)
    )
    steps = replace(arrays(batch), penalty=penalty)
    # The means of visits are rounded, so values near the threshold under which group_advantage
    # treats values as equal may differ: hence the larger tolerance.
    got = find_estimator("g2po")(steps, settings)
    np.testing.assert_allclose(got, expected, atol=1e-5)


@given(BATCHES, SETTINGS)
def test_gagpo(batch, settings) -> None:
    """Advantages are GAE with mean returns by state as values, compared within the task."""
    visits = defaultdict(list)
    for task, states, values in batch:
        for state, value in zip(states, values, strict=True):
            visits[task, state].append(value)
    table = [float(np.mean(visits[task, s])) for task, states, _ in batch for s in states]
    steps = arrays(batch)
    raw = gae(steps, np.array(table), settings.gamma, settings.gae_lambda)
    tasks = [task for task, states, _ in batch for _ in states]
    got = find_estimator("gagpo")(steps, replace(settings, normalize="mean"))
    np.testing.assert_allclose(got, within(tasks, list(raw), "mean"), atol=1e-7)


@given(BATCHES, GRAPH)
def test_salt(batch, settings) -> None:
    """Each step gets the mean over the steps with the same edge and the same K states before it."""
    whole = by_trajectory(batch, settings)
    edges = [
        (history(settings.context_length)(task, states, t), action(value), after)
        for task, states, returns in batch
        for t, (value, after) in enumerate(zip(returns, following(states), strict=True))
    ]
    expected = [
        np.mean([a for a, other in zip(whole, edges, strict=True) if other == edge])
        for edge in edges
    ]
    got = find_estimator("salt")(arrays(batch), settings)
    np.testing.assert_allclose(got, expected, atol=1e-9)
    assert got.sum() == pytest.approx(sum(whole), abs=1e-7)


def test_a_short_way_to_success_is_better_by_hand() -> None:
    """A short way to success is better than a detour, and a detour better than no success."""
    batch = StepArrays.from_columns(
        task=[0] * 6,
        trajectory=[0, 1, 1, 1, 2, 2],
        time=[0, 0, 1, 2, 0, 1],
        anchor=["hall", "hall", "cellar", "hall", "hall", "attic"],
        next_anchor=["garden", "cellar", "hall", "garden", "attic", "attic"],
        reward=[10.0, 0, 0, 10.0, 0, 0],
        won=[True, True, True, True, False, False],
    )
    assert success_distance(batch).tolist() == [0, 2, 1, 0, 3, 3]
    for name in ("graphgpo", "g2po"):
        direct, detour, _, _, away, _ = find_estimator(name)(batch, EstimatorSettings())
        assert direct > detour > away


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("grpo", "trajectory_return"),
        ("gigpo", "trajectory_return"),
        ("rloo", "trajectory_return"),
        ("hgpo_base_group", "trajectory_return"),
        ("graphgpo", "next_anchor"),
        ("graphgpo", "won"),
        ("graphgpo", "trajectory_return"),
        ("g2po", "won"),
        ("g2po", "trajectory_return"),
        ("salt", "action"),
        ("salt", "next_anchor"),
        ("salt", "trajectory_return"),
        ("gaca", "nll"),
        ("gaca", "trajectory_return"),
        ("empg", "nll"),
        ("empg", "trajectory_return"),
        ("hcapo", "teacher_nll"),
        ("hcapo", "won"),
        ("hcapo", "trajectory_return"),
    ],
)
def test_a_missing_column_is_named(name: str, missing: str) -> None:
    batch: list[Trajectory] = [(0, [0, 1], [1.0, 2.0]), (0, [0, 2], [0.0, 0.0])]
    given = columns(batch) | transitions(batch)
    del given[missing]
    with pytest.raises(ValueError, match=f"the steps need {missing}"):
        find_estimator(name)(StepArrays.from_columns(**given), EstimatorSettings())


def test_transitions_fit_together() -> None:
    batch: list[Trajectory] = [(0, [0, 1], [1.0, 2.0])]
    given = columns(batch) | transitions(batch)
    given["next_anchor"][0] = 2
    with pytest.raises(ValueError, match="rows 0 and 1: next_anchor is not the next anchor"):
        StepArrays.from_columns(**given)


def test_salt_gives_0_to_what_all_trajectories_share() -> None:
    """The advantages of a whole task cancel exactly, so that such steps can be dropped."""
    members = range(8)
    steps = StepArrays.from_columns(
        task=[0] * 16,
        trajectory=np.repeat(members, 2),
        time=[0, 1] * 8,
        anchor=["room", "desk"] * 8,
        next_anchor=[s for m in members for s in ("desk", "won" if m < 3 else "lost")],
        action=["go", "take"] * 8,
        reward=[r for m in members for r in (0.0, 10.0 * (m < 3))],
    )
    advantage = find_estimator("salt")(steps, EstimatorSettings())
    assert not advantage[::2].any()
    assert advantage[1::2].all()


@pytest.mark.parametrize("name", ["hgpo_gae", "gagpo"])
def test_equal_episodes_have_advantages_of_exactly_0(name: str) -> None:
    """Rounding errors of mean returns do not become advantages."""
    steps = StepArrays.from_columns(
        task=[0] * 56,
        trajectory=np.repeat(range(8), 7),
        time=[*range(7)] * 8,
        anchor=[*range(7)] * 8,
        reward=[*[0.0] * 6, 10.0] * 8,
    )
    assert not find_estimator(name)(steps, EstimatorSettings()).any()
