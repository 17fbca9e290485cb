"""HiPER, compared with plain loops over its recursions and with GAE in its limits."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hgpo_rllib.advantages import EstimatorSettings, StepArrays
from hgpo_rllib.advantages.baselines import gae
from hgpo_rllib.advantages.segments import SegmentValues, hiper
from tests.unit.advantages.advantage_batches import from_rewards, within

STEPS = st.tuples(st.sampled_from([0.0, 1.0, 10.0]), st.booleans())  # reward, begins a segment
EPISODES = st.lists(st.lists(STEPS, min_size=1, max_size=6), min_size=1, max_size=4)
SETTINGS = st.builds(
    EstimatorSettings,
    normalize=st.sampled_from(["mean", "mean_std"]),
    gamma=st.sampled_from([0.5, 0.95, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.7, 1.0]),
    segment_lambda=st.sampled_from([0.0, 0.6, 1.0]),
)
Episodes = list[list[tuple[float, bool]]]


def batch(episodes: Episodes, gamma: float) -> tuple[StepArrays, np.ndarray, SegmentValues]:
    """Return the steps of (reward, begins), where segments begin, and arbitrary values."""
    steps = from_rewards(episodes, gamma)
    begins = np.array([begins for episode in episodes for _, begins in episode]) | (steps.time == 0)
    number = np.arange(len(steps))
    return steps, begins, SegmentValues(np.sin(number), np.cos(number), np.sin(2.0 * number))


def normalized(values: list[float], normalize: str) -> np.ndarray:
    return within([0] * len(values), values, normalize)


@given(EPISODES, SETTINGS)
def test_by_loops(episodes: Episodes, settings: EstimatorSettings) -> None:
    """Advantages and targets equal the equations of the paper's code, computed by loops."""
    steps, begins, value = batch(episodes, settings.gamma)
    gamma, lam, decay = settings.gamma, settings.gae_lambda, settings.segment_lambda
    low, switch = np.zeros(len(steps)), np.zeros(len(steps))
    high: dict[int, float] = {}
    start = 0
    for episode in episodes:
        end = start + len(episode)
        firsts = [row for row in range(start, end) if begins[row]]
        after_value, after_advantage = 0.0, 0.0  # of the next segment
        for first, last in reversed([*zip(firsts, [*firsts[1:], end], strict=True)]):
            rewards = [episode[row - start][0] for row in range(first, last)]
            q, bootstrap, advantage = after_value, after_value, 0.0
            for row in reversed(range(first, last)):
                reward = rewards[row - first]
                delta = reward + gamma * bootstrap - value.low[row]
                advantage = delta + gamma * lam * advantage
                q = reward + gamma * q
                low[row], switch[row] = advantage, q - value.switch[row]
                bootstrap = value.low[row]
            size = last - first
            total = sum(gamma**j * reward for j, reward in enumerate(rewards))
            delta = total + gamma**size * after_value - value.high[first]
            high[first] = delta + gamma**size * decay * after_advantage
            after_value, after_advantage = value.high[first], high[first]
        start = end
    advantage, target = hiper(steps, begins, value, settings)
    rows = sorted(high)
    expected = normalized([high[row] for row in rows], settings.normalize)
    np.testing.assert_allclose(advantage.high[rows], expected, atol=1e-6)
    assert not advantage.high[~begins].any()
    assert not target.high[~begins].any()
    for got, raw in ((advantage.low, low), (advantage.switch, switch)):
        np.testing.assert_allclose(got, normalized(raw.tolist(), settings.normalize), atol=1e-6)
    np.testing.assert_allclose(target.low, low + value.low, atol=1e-9)
    np.testing.assert_allclose(target.switch, switch + value.switch, atol=1e-9)
    raw_high = [high[row] + value.high[row] for row in rows]
    np.testing.assert_allclose(target.high[rows], raw_high, atol=1e-9)


@given(EPISODES, SETTINGS, st.integers(0))
def test_a_penalty_affects_only_its_own_step(
    episodes: Episodes, settings: EstimatorSettings, place: int
) -> None:
    """A penalty changes only its own step's targets; of sub-goals, only where a segment begins."""
    steps, begins, value = batch(episodes, settings.gamma)
    row = place % len(steps)
    penalty = np.eye(len(steps))[row]
    punished = replace(steps, step_return=steps.step_return - penalty, penalty=penalty)
    _, before = hiper(steps, begins, value, settings)
    _, after = hiper(punished, begins, value, settings)
    for old, new, expected in zip(before, after, (penalty, penalty * begins, penalty), strict=True):
        np.testing.assert_allclose(old - new, expected, atol=1e-9)
    for gae_lambda in (0.0, settings.gae_lambda, 1.0):
        flat = [gae(s, value.low, settings.gamma, gae_lambda) for s in (steps, punished)]
        np.testing.assert_allclose(flat[0] - flat[1], penalty, atol=1e-9)


@given(EPISODES, SETTINGS)
def test_one_segment_is_flat_gae(episodes: Episodes, settings: EstimatorSettings) -> None:
    """With one segment, actions get plain GAE; targets of sub-goals and switches are returns."""
    steps, begins, value = batch(episodes, settings.gamma)
    begins = steps.time == 0
    advantage, target = hiper(steps, begins, value, replace(settings, normalize="mean"))
    flat = gae(steps, value.low, settings.gamma, settings.gae_lambda)
    np.testing.assert_allclose(advantage.low, flat - flat.mean(), atol=1e-9)
    np.testing.assert_allclose(target.switch, steps.step_return, atol=1e-9)
    np.testing.assert_allclose(target.high[begins], steps.step_return[begins], atol=1e-9)


@given(EPISODES, SETTINGS)
def test_one_turn_per_segment_is_turn_gae(episodes: Episodes, settings: EstimatorSettings) -> None:
    """With one turn per segment, sub-goals get GAE over turns, and actions one-step targets."""
    steps, begins, value = batch(episodes, settings.gamma)
    begins = np.ones(len(steps), bool)
    advantage, target = hiper(steps, begins, value, replace(settings, normalize="mean"))
    turn = gae(steps, value.high, settings.gamma, settings.segment_lambda)
    np.testing.assert_allclose(advantage.high, turn - turn.mean(), atol=1e-9)
    one_step = gae(steps, value.high, settings.gamma, 0.0) + value.high
    np.testing.assert_allclose(target.low, one_step, atol=1e-9)
    np.testing.assert_allclose(target.switch, one_step, atol=1e-9)
