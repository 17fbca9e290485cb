"""Rows that share a token sequence: one pass gives the results of separate passes."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from hgpo_rllib.agent import Turn
from hgpo_rllib.learner.batching import (
    find_sequences,
    last_rows,
    minibatches,
    token_batch,
    value_batch,
)
from hgpo_rllib.learner.data_parallel import local_micro_batches
from hgpo_rllib.rollout.trajectory import ResponseRow
from hgpo_rllib.settings.learner import LearnerSettings
from tests.unit.learner.learner_reference import (
    add_values,
    assert_equal,
    critic_of,
    frozen_of,
    llm_of,
    logp_and_entropy,
    make_columns,
    make_learner,
    parameters_and_gradients,
    reference_update,
    update,
    value_of,
)
from tests.unit.learner.test_token_values import plain_values

pytestmark = pytest.mark.usefixtures("exact_norms")
CPU = torch.device("cpu")
COMMON: dict[str, Any] = {
    "lr": 3e-3,
    "kl_coeff": 0.5,
    "grad_clip": 1e9,
    "mismatch_alarm": None,
    "micro_batch_tokens": 40,
}


def turns(*prompts_and_responses: tuple[list[int], list[int]]) -> list[Turn]:
    """Return turns with these token ids."""
    return [
        Turn("", "", prompt_ids=np.array(prompt, np.int32), response_ids=np.array(ids, np.int32))
        for prompt, ids in prompts_and_responses
    ]


def test_a_row_continues_the_one_before() -> None:
    """A row continues the previous one if its prompt starts with that one's tokens."""
    conversation = turns(([1, 2], [3]), ([1, 2, 3, 4], [5, 6]), ([1, 2, 3, 4, 5, 6, 7], [8]))
    other = turns(([1, 2], [3]), ([1, 2, 9, 4], [5]), ([1, 2, 9, 4, 5], [6]))
    of_another_episode = turns(([1, 2, 9, 4, 5, 6, 7], [8]))
    rows = [
        ResponseRow(trajectory, 3 * trajectory + i, turn)
        for trajectory, episode in enumerate(
            (conversation, conversation, other, of_another_episode)
        )
        for i, turn in enumerate(episode)
    ]
    assert find_sequences(rows).tolist() == [0, 0, 0, 1, 1, 1, 2, 3, 3, 4]


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    size=st.integers(1, 60),
    seed=st.integers(0, 9),
)
def test_mini_batches_keep_sequences_together(lengths: list[int], size: int, seed: int) -> None:
    """Each row is in one part, and a part exceeds its size by at most one sequence."""
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    parts = list(minibatches(sequence, size, 1, np.random.default_rng(seed)))
    assert sorted(np.concatenate(parts)) == list(range(len(sequence)))
    for part in parts:
        whole = sum(lengths[number] for number in set(sequence[part]))
        assert len(part) == whole
        rows = len(sequence) / max(1, round(len(sequence) / size))
        assert len(part) <= rows + 1 + max(lengths)


def make_conversations(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return conversations of 3, 1, 2 and 1 rows, and a slightly different engine."""
    columns = make_columns(model)
    sequence = torch.tensor([0, 0, 0, 1, 2, 2, 3])
    prompts = torch.zeros(7, 40, dtype=torch.int32)
    lengths = columns["prompt_length"].clone()
    prompts[:, :9] = columns["prompt_ids"]
    for row in range(1, 7):
        if sequence[row] == sequence[row - 1]:
            before = prompts[row - 1, : lengths[row - 1]]
            response = columns["response_ids"][row - 1, : columns["response_length"][row - 1]]
            message = columns["prompt_ids"][row, : lengths[row]]
            whole = torch.cat([before, response, message])
            prompts[row, : len(whole)] = whole
            lengths[row] = len(whole)
    columns |= {"prompt_ids": prompts, "prompt_length": lengths, "sequence": sequence}
    generator = torch.Generator().manual_seed(0)
    for row in range(7):
        with torch.no_grad():
            logp, _ = logp_and_entropy(model, columns, row)
        noise = 0.4 * torch.randn(len(logp), generator=generator)
        columns["behavior_logp"][row, : len(logp)] = (logp + noise).float()
    return columns


@pytest.fixture(scope="module")
def columns(model_path: str) -> dict[str, Tensor]:
    """Return the columns of `make_conversations`."""
    return make_conversations(llm_of(make_learner(model_path)))


def test_one_row_of_tokens_per_sequence(columns: dict[str, Tensor]) -> None:
    """Each sequence has the tokens of its last row, and response tokens have correct positions."""
    batch = token_batch(columns, np.array([0, 1, 3, 5]), CPU)
    lengths = (columns["prompt_length"] + columns["response_length"])[[1, 3, 5]]
    assert batch["ids"].shape == (3, lengths.max())
    tokens = batch["ids"][batch["sequence"], batch["position"]]
    assert tokens.tolist() == columns["response_ids"][batch["row"], batch["offset"]].tolist()
    for step in (0, 1, 3, 5):
        row, position = (
            batch["sequence"][batch["row"] == step],
            batch["position"][batch["row"] == step],
        )
        prompt = columns["prompt_ids"][step, : columns["prompt_length"][step]]
        assert batch["ids"][row[0], : position[0]].tolist() == prompt.tolist()


def test_passes_keep_sequences_together(columns: dict[str, Tensor]) -> None:
    """Passes contain whole sequences, which are as long as their last row."""
    rows = np.array([6, 5, 0, 2, 4])
    lengths = (columns["prompt_length"] + columns["response_length"]).numpy()
    parts = local_micro_batches(columns, rows, lengths, LearnerSettings(micro_batch_tokens=1))
    assert sorted(sorted(part.tolist()) for part in parts) == [[0, 2], [4, 5], [6]]
    last, sequence = last_rows(columns, rows)
    assert last[sequence].tolist() == [6, 5, 2, 2, 5]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="defaults"),
        pytest.param({"minibatch_size": 3, "num_epochs": 2}, id="mini-batches"),
        pytest.param({"drop_zero_advantage": True, "kl_coeff": 0.0}, id="dropped"),
        pytest.param({"old_logp": "recomputed", "minibatch_size": 3}, id="recomputed"),
        pytest.param({"ratio_level": "sequence", "minibatch_size": 3}, id="ratios of responses"),
        pytest.param(
            {
                "old_logp": "recomputed",
                "importance_cap": 1.2,
                "importance_level": "sequence",
                "minibatch_size": 3,
            },
            id="weights of responses",
        ),
        pytest.param({"critic": "head", "estimator": "ppo"}, id="head"),
        pytest.param({"critic": "separate", "estimator": "ppo"}, id="separate"),
    ],
)
def test_gradients_are_those_of_separate_rows(
    model_path: str, columns: dict[str, Tensor], options: dict[str, Any]
) -> None:
    """Gradients equal those of a reference that computes rows separately, to 1e-8."""
    chosen = COMMON | options
    learner = make_learner(model_path, **chosen)
    with_values = add_values(columns, learner) if "critic" in options else columns
    settings = LearnerSettings(**{k: v for k, v in chosen.items() if k != "estimator"})
    critic = copy.deepcopy(critic_of(learner))
    expected = [
        reference_update(llm_of(learner), frozen_of(learner), with_values, settings, critic)
    ]
    update(learner, with_values)
    got = [llm_of(learner)]
    if critic is not None:
        expected.append(critic)
        got.append(critic_of(learner))
    assert_equal(parameters_and_gradients(*got), parameters_and_gradients(*expected), 1e-8)


@pytest.mark.parametrize("critic", ["head", "separate"])
def test_values_of_prompts(model_path: str, columns: dict[str, Tensor], critic: str) -> None:
    """Each value equals that of the prompt computed alone."""
    learner = make_learner(model_path, critic=critic)
    policy, head = llm_of(learner), critic_of(learner)
    assert head is not None
    with torch.no_grad():
        expected = [value_of(policy, head, columns, row).item() for row in range(7)]
    assert value_batch(columns, np.arange(7), CPU, per_token=False)["ids"].shape[0] == 4
    np.testing.assert_allclose(learner.values(columns), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("critic", ["head", "separate"])
def test_values_of_tokens(model_path: str, columns: dict[str, Tensor], critic: str) -> None:
    """Each value equals that of the preceding tokens computed alone."""
    learner = make_learner(model_path, critic=critic, estimator="vetta")
    got = learner.values(columns)
    for row in range(7):
        with torch.no_grad():
            expected = plain_values(learner, columns, row).numpy()
        np.testing.assert_allclose(got[row, : len(expected)], expected, rtol=0, atol=1e-8)
