"""Advantages of tokens, compared with plain loops over GAE and in its limits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_rllib.advantages import EstimatorSettings, StepArrays, find_estimator
from hgpo_rllib.advantages.baselines import gae, value_targets
from hgpo_rllib.advantages.steps import Floats
from hgpo_rllib.advantages.tokens import TokenArrays, ppo_tokens, vetta
from tests.unit.advantages.advantage_batches import from_rewards

TURNS = st.tuples(st.sampled_from([0.0, 1.0, 10.0]), st.booleans(), st.integers(1, 4))
EPISODES = st.lists(st.lists(TURNS, min_size=1, max_size=5), min_size=1, max_size=4)
SETTINGS = st.builds(
    EstimatorSettings,
    normalize=st.just("mean"),
    gamma=st.sampled_from([0.5, 0.95, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.7, 1.0]),
    token_weight=st.sampled_from([0.0, 1.0, 3.0]),
)
PENALTY = 0.25
Episodes = list[list[tuple[float, bool, int]]]


def batch(
    episodes: Episodes, settings: EstimatorSettings, one_head: bool
) -> tuple[StepArrays, TokenArrays]:
    """Return turns of (reward, invalid, tokens); with one head, V_k is V of the first token."""
    turns = [turn for episode in episodes for turn in episode]
    lengths = np.array([tokens for *_, tokens in turns])
    step = np.repeat(np.arange(len(turns)), lengths)
    value = np.cos(np.arange(len(step)))
    first = value[np.cumsum(lengths) - lengths]
    steps = from_rewards(episodes, settings.gamma, PENALTY)
    turn_value = first if one_head else np.sin(np.arange(len(turns)))
    return replace(steps, value=turn_value), TokenArrays(step, step, value)


def token_loop(
    steps: StepArrays, tokens: TokenArrays, rewards: Floats, gamma: float, lam: float
) -> list[float]:
    """Return GAE over the tokens of each episode, with a turn's reward at its last token."""
    advantages = np.zeros(len(tokens.value))
    for j in reversed(range(len(tokens.value))):
        turn, last = tokens.step[j], j + 1 == len(tokens.value)
        ends = last or tokens.step[j + 1] != turn
        over = last or steps.trajectory[tokens.step[j + 1]] != steps.trajectory[turn]
        g, decay = (gamma, lam) if ends else (1.0, 1.0)
        following = 0.0 if over else tokens.value[j + 1]
        delta = ends * rewards[turn] + g * following - tokens.value[j]
        advantages[j] = delta + (0.0 if over else g * decay * advantages[j + 1])
    return advantages.tolist()


@given(EPISODES, SETTINGS)
def test_ppo_tokens_by_a_loop(episodes: Episodes, settings: EstimatorSettings) -> None:
    """GAE runs through all turns; targets are values plus advantages before centering."""
    steps, tokens = batch(episodes, settings, one_head=True)
    turns = [turn for episode in episodes for turn in episode]
    rewards = np.array([reward for reward, *_ in turns])
    raw = np.array(token_loop(steps, tokens, rewards, settings.gamma, settings.gae_lambda))
    raw -= PENALTY * np.array([invalid for _, invalid, _ in turns])[tokens.step]
    advantage, target = ppo_tokens(steps, tokens, settings)
    np.testing.assert_allclose(advantage, raw - raw.mean(), atol=1e-9)
    np.testing.assert_allclose(target, raw + tokens.value, atol=1e-9)
    scaled, _ = ppo_tokens(steps, tokens, replace(settings, normalize="mean_std"))
    np.testing.assert_allclose(scaled, (raw - raw.mean()) / (raw.std() + 1e-6), atol=1e-6)


@given(EPISODES, SETTINGS)
def test_vetta_by_loops(episodes: Episodes, settings: EstimatorSettings) -> None:
    """VETTA is GAE over turns plus undiscounted GAE over tokens, centered in each response."""
    steps, tokens = batch(episodes, settings, one_head=False)
    # Leave out the penalties of later turns, which would lower the returns of earlier turns.
    turns = [turn for episode in episodes for turn in episode]
    rewards, residual = np.array([reward for reward, *_ in turns]), np.zeros(len(tokens.value))
    raw = np.array(token_loop(steps, tokens, rewards, 1.0, 1.0))
    for k, (_, invalid, _) in enumerate(turns):
        own = tokens.step == k
        raw[own] -= PENALTY * invalid
        residual[own] = raw[own] - raw[own].mean()
    turn_advantage = gae(steps, steps.require("value"), settings.gamma, settings.gae_lambda)
    expected = turn_advantage[tokens.step] + settings.token_weight * residual
    advantage, target = vetta(steps, tokens, settings)
    np.testing.assert_allclose(advantage, expected - expected.mean(), atol=1e-9)
    np.testing.assert_allclose(target, raw + tokens.value, atol=1e-9)
    scaled, _ = vetta(steps, tokens, replace(settings, normalize="mean_std"))
    np.testing.assert_allclose(scaled, advantage / (expected.std() + 1e-6), atol=1e-6)


@given(EPISODES, SETTINGS)
def test_one_token_per_response(episodes: Episodes, settings: EstimatorSettings) -> None:
    """With one token per response, both token estimators equal GAE over turns."""
    single = [[(reward, invalid, 1) for reward, invalid, _ in turns] for turns in episodes]
    steps, tokens = batch(single, settings, one_head=True)
    expected = find_estimator("ppo")(steps, settings)
    for estimator in (ppo_tokens, vetta):
        np.testing.assert_allclose(estimator(steps, tokens, settings)[0], expected, atol=1e-9)


@given(EPISODES, SETTINGS)
def test_equal_values_in_a_response(episodes: Episodes, settings: EstimatorSettings) -> None:
    """If a response's values are equal, its tokens have the advantage of their turn."""
    steps, tokens = batch(episodes, settings, one_head=True)
    value = steps.require("value")
    tokens = replace(tokens, value=value[tokens.step])
    turn = gae(steps, value, settings.gamma, settings.gae_lambda)[tokens.step]
    for estimator in (ppo_tokens, vetta):
        advantage, _ = estimator(steps, tokens, settings)
        np.testing.assert_allclose(advantage, turn - turn.mean(), atol=1e-9)


@given(EPISODES, SETTINGS)
def test_one_turn_per_episode(episodes: Episodes, settings: EstimatorSettings) -> None:
    """With one turn, advantages are returns minus values for any gamma and lambda."""
    steps, tokens = batch([turns[:1] for turns in episodes], settings, one_head=True)
    raw = steps.step_return[tokens.step] - tokens.value
    advantage, _ = ppo_tokens(steps, tokens, settings)
    np.testing.assert_allclose(advantage, raw - raw.mean(), atol=1e-9)


@given(EPISODES)
def test_gamma_and_lambda_1(episodes: Episodes) -> None:
    """With gamma = lambda = 1, advantages are returns minus values, and targets are returns."""
    settings = EstimatorSettings(gamma=1.0, gae_lambda=1.0, normalize="mean")
    steps, tokens = batch(episodes, settings, one_head=True)
    raw = steps.step_return[tokens.step] - tokens.value
    advantage, target = ppo_tokens(steps, tokens, settings)
    np.testing.assert_allclose(advantage, raw - raw.mean(), atol=1e-9)
    for targets in (target, vetta(steps, tokens, settings)[1]):
        np.testing.assert_allclose(targets, steps.step_return[tokens.step], atol=1e-9)


def test_vetta_by_hand() -> None:
    """VETTA equals values computed by hand for two turns of two tokens, the second invalid."""
    settings = EstimatorSettings(gamma=0.5, gae_lambda=0.5, normalize="mean", token_weight=2.0)
    steps, tokens = batch([[(0.0, False, 2), (10.0, True, 2)]], settings, one_head=False)
    steps = replace(steps, value=np.array([1.0, 4.0]))
    tokens = replace(tokens, value=np.array([0.0, 2.0, 3.0, 1.0]))
    first = 0.5 * 4 - 1 + 0.25 * (10 - 4)  # without the second turn's penalty
    second = 10 - 4 - PENALTY
    expected = np.array([first + 2, first - 2, second - 2, second + 2])
    advantage, target = vetta(steps, tokens, settings)
    np.testing.assert_allclose(advantage, expected - expected.mean())
    np.testing.assert_allclose(target, [10, 10, 9.75, 9.75])
    np.testing.assert_allclose(value_targets(steps, settings), [first + 1, second + 4])
    _, target = vetta(replace(steps, penalty=None), tokens, settings)
    np.testing.assert_allclose(target[2:], 9.75)


@pytest.mark.parametrize("estimator", [ppo_tokens, vetta])
def test_no_tokens(estimator) -> None:
    """Steps with empty responses have no advantages or targets of tokens."""
    steps, _ = batch([[(1.0, False, 1)]], EstimatorSettings(), one_head=True)
    nothing = np.zeros(0, np.int64)
    for result in estimator(steps, TokenArrays(nothing, nothing, np.zeros(0)), EstimatorSettings()):
        assert result.shape == (0,)
