"""The learner's parts: batching, weights of tokens, token log-probabilities, passes."""

import copy
import math
from contextlib import nullcontext
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from hgpo_rllib.learner.batching import (
    MAX_PADDING,
    fewest_cuts,
    micro_batches,
    minibatches,
    plan_update,
    token_batch,
    token_weights,
)
from hgpo_rllib.learner.module import TokenScorer, token_log_probs
from hgpo_rllib.settings import learner as learner_settings
from hgpo_rllib.settings.learner import Aggregation, LearnerSettings, resolve_compute_dtype
from tests.unit.learner.learner_reference import (
    QWEN,
    TEMPERATURE,
    assert_equal,
    build_learner,
    llm_of,
    logp_and_entropy,
    make_columns,
    update_gradients,
)

CPU = torch.device("cpu")


class TestMinibatches:
    @given(st.integers(1, 200), st.integers(1, 60), st.integers(1, 3), st.integers(0, 9))
    def test_every_row_once_an_epoch(self, steps: int, size: int, epochs: int, seed: int) -> None:
        """Each epoch is a permutation of the rows, cut into parts of nearly equal size."""
        parts = list(minibatches(np.arange(steps), size, epochs, np.random.default_rng(seed)))
        assert len(parts) == epochs * max(1, round(steps / size))
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        each = len(parts) // epochs
        for epoch in range(epochs):
            taken = np.concatenate(parts[epoch * each : (epoch + 1) * each])
            assert sorted(taken) == list(range(steps))

    def test_every_epoch_is_shuffled_anew(self) -> None:
        """All epochs have different orders, and the first one is shuffled too."""
        first, second = minibatches(np.arange(50), 50, 2, np.random.default_rng(0))
        assert first.tolist() != sorted(first)
        assert first.tolist() != second.tolist()


class TestMicroBatches:
    @given(st.lists(st.integers(1, 40), min_size=1, max_size=40), st.integers(1, 120))
    def test_budget(self, lengths: list[int], budget: int) -> None:
        """Each row is in one part; parts fit the budget or have one row, and padding is limited."""
        array = np.array(lengths)
        rows = np.random.default_rng(0).permutation(len(lengths))[: -(-len(lengths) // 2)]
        parts = list(micro_batches(rows, array, budget))
        assert sorted(np.concatenate(parts)) == sorted(rows)
        for part in parts:
            assert len(part) == 1 or len(part) * array[part].max() <= budget
        padded = sum(len(part) * array[part].max() for part in parts)
        assert array[rows].sum() >= (1 - MAX_PADDING) * padded

    @given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 120))
    def test_no_cut_is_too_many(self, lengths: list[int], budget: int) -> None:
        """Fewer parts would have too much padding, and as many could not have less."""
        array = np.sort(lengths)

        def best(cuts: int) -> float:
            ways = combinations(range(1, len(array)), cuts)
            return min(size_of(np.split(array, way)) for way in ways)

        def size_of(parts: list[NDArray]) -> float:
            fits = all(len(part) == 1 or len(part) * part[-1] <= budget for part in parts)
            return sum(len(part) * part[-1] for part in parts) if fits else np.inf

        cuts = fewest_cuts(array, budget)
        assert size_of(np.split(array, cuts)) == best(len(cuts))
        for fewer in range(len(cuts)):
            assert best(fewer) * (1 - MAX_PADDING) > array.sum()

    def test_many_rows(self) -> None:
        """Thousands of rows are cut greedily, with little padding and few parts."""
        lengths = np.random.default_rng(0).integers(50, 400, 3000)
        parts = list(micro_batches(np.arange(3000), lengths, 16384))
        assert sorted(np.concatenate(parts)) == list(range(3000))
        padded = sum(len(part) * lengths[part].max() for part in parts)
        assert lengths.sum() >= (1 - MAX_PADDING) * padded
        assert len(parts) < 1.2 * lengths.sum() / 16384


def columns() -> dict[str, Tensor]:
    """Return six steps with random tokens, lengths and numbers, right padded."""
    generator = torch.Generator().manual_seed(1)
    return {
        "prompt_ids": torch.randint(1, 50, (6, 9), generator=generator, dtype=torch.int32),
        "prompt_length": torch.tensor([9, 3, 1, 7, 5, 2]),
        "response_ids": torch.randint(1, 50, (6, 4), generator=generator, dtype=torch.int32),
        "response_length": torch.tensor([1, 4, 2, 3, 4, 1]),
        "behavior_logp": torch.randn(6, 4, generator=generator),
        "advantage": torch.randn(6, generator=generator),
    }


class TestTokenBatch:
    @pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [4, 1, 2], [5], [2, 5]])
    def test_against_a_loop(self, rows: list[int]) -> None:
        """The batch has every response token in order, with its position and its values."""
        source = columns()
        batch = token_batch(source, np.array(rows), CPU)
        tokens = []
        for row, step in enumerate(rows):
            prompt = source["prompt_ids"][step, : source["prompt_length"][step]].tolist()
            response = source["response_ids"][step, : source["response_length"][step]].tolist()
            whole = prompt + response
            assert batch["ids"][row, : len(whole)].tolist() == whole
            for offset in range(len(response)):
                behavior = source["behavior_logp"][step, offset].item()
                advantage = source["advantage"][step].item()
                tokens.append((row, len(prompt) + offset, behavior, advantage))
        for row, step in enumerate(rows):
            assert set(batch["row"][batch["sequence"] == row].tolist()) == {step}
        source_ids = source["response_ids"][batch["row"], batch["offset"]]
        assert batch["ids"][batch["sequence"], batch["position"]].tolist() == source_ids.tolist()
        names = ("sequence", "position", "behavior_logp", "advantage")
        assert list(zip(*(batch[name].tolist() for name in names), strict=True)) == tokens
        lengths = source["prompt_length"][rows] + source["response_length"][rows]
        assert batch["ids"].shape == (len(rows), lengths.max())


@pytest.fixture(scope="module")
def llm() -> Qwen2ForCausalLM:
    """Return a tiny random Qwen2 with grouped heads."""
    torch.manual_seed(0)
    config = Qwen2Config(**QWEN.to_dict() | {"initializer_range": 0.5})
    return Qwen2ForCausalLM(config).eval()


class TestTokenLogProbs:
    def test_against_one_sequence_at_a_time(self, llm: Qwen2ForCausalLM) -> None:
        """Padding, batching and gathering do not change log-probabilities or entropy."""
        source, rows = columns(), np.array([3, 0, 2, 1, 4])
        batch = token_batch(source, rows, CPU)
        with torch.no_grad():
            got = token_log_probs(llm, batch, TEMPERATURE)
            alone = [logp_and_entropy(llm, source, step) for step in rows]
        assert_equal([got["logp"], got["entropy"]], map(torch.cat, zip(*alone, strict=True)), 1e-5)

    def test_restricted_tokens(self, llm: Qwen2ForCausalLM) -> None:
        """Restricted tokens have a distribution over the permitted tokens; others are unchanged."""
        source, rows = columns(), np.array([3, 1, 2])
        free = token_log_probs(llm, token_batch(source, rows, CPU), 0.7)
        first, second = source["response_ids"][1, [0, 2]].tolist()
        entries = [(0, first), (0, 7), (0, 9), (2, ~5), (2, ~6)]
        restrictions = torch.full((6, 6, 2), -1, dtype=torch.int32)
        restrictions[1, :5] = torch.tensor(entries)
        batch = token_batch(source | {"restrictions": restrictions}, rows, CPU)
        got = token_log_probs(llm, batch, 0.7, entropy_gradient=True)
        start = int(source["prompt_length"][1])
        response = source["response_ids"][1, : source["response_length"][1]].long()
        ids = torch.cat([source["prompt_ids"][1, :start].long(), response])
        logits = llm(input_ids=ids[None]).logits.detach()[0, start - 1 :].double() / 0.7
        listed = logits[0, [first, 7, 9]].log_softmax(0)
        others = logits[2].index_fill(0, torch.tensor([5, 6]), -math.inf).log_softmax(0)
        wanted, entropy = free["logp"].detach().clone(), free["entropy"].detach().clone()
        place = int(source["response_length"][3])  # first token of the row
        wanted[place], wanted[place + 2] = listed[0], others[second]
        entropy[place] = -(listed.exp() * listed).sum()
        entropy[place + 2] = -(others.exp() * others.clamp(min=-1e30)).sum()
        np.testing.assert_allclose(got["logp"].detach().numpy(), wanted, rtol=0, atol=1e-5)
        np.testing.assert_allclose(got["entropy"].detach().numpy(), entropy, rtol=0, atol=1e-5)
        (got["logp"].sum() + got["entropy"].sum()).backward()
        gradients = [p.grad for p in llm.parameters() if p.grad is not None]
        assert all(gradient.isfinite().all() for gradient in gradients)
        llm.zero_grad()

    def test_logits_of_some_tokens_at_a_time(
        self, llm: Qwen2ForCausalLM, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Computing logits in chunks changes neither results nor gradients."""
        restrictions = torch.full((6, 6, 2), -1, dtype=torch.int32)
        restrictions[1, :3] = torch.tensor([(0, 5), (0, 7), (2, ~5)])
        restrictions[2, :2] = torch.tensor([(1, 9), (1, 4)])
        model, rows = copy.deepcopy(llm).double(), np.array([3, 1, 2])
        vocabulary = model.config.vocab_size
        for source in (columns(), columns() | {"restrictions": restrictions}):
            batch = token_batch(source, rows, CPU)
            results = []
            for tokens in (1000, 4, 1):
                monkeypatch.setattr(learner_settings, "LOGITS_AT_ONCE", tokens * vocabulary)
                got = token_log_probs(model, batch, 0.7, entropy_gradient=True)
                model.zero_grad()
                (got["logp"].sum() - got["entropy"].square().sum()).backward()
                gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
                results.append([got["logp"].detach(), got["entropy"].detach(), *gradients])
            for parts in results[1:]:
                assert_equal(parts, results[0], 1e-9)

    def test_the_entropy_has_a_gradient_where_it_is_asked_for(self, llm: Qwen2ForCausalLM) -> None:
        """The entropy has a gradient only if it is requested and gradients are enabled."""
        batch = token_batch(columns(), np.array([1, 2]), CPU)
        for wanted in (False, True):
            got = token_log_probs(llm, batch, 1.0, entropy_gradient=wanted)
            assert got["logp"].requires_grad
            assert got["entropy"].requires_grad == wanted
        with torch.no_grad():
            assert not token_log_probs(llm, batch, 1.0, True)["entropy"].requires_grad


class TestTokenWeights:
    LENGTHS = np.array([1, 2, 3, 4, 5])

    @pytest.mark.parametrize(
        ("aggregation", "expected"),
        [
            ("token-mean", [1 / 15] * 5),
            ("seq-mean", [1 / 5, 1 / 10, 1 / 15, 1 / 20, 1 / 25]),
            # Parts of 3, 7 and 5 tokens; the last part has one step.
            ("micro-batch-mean", [1 / 9, 1 / 9, 1 / 21, 1 / 21, 1 / 15]),
        ],
    )
    def test_by_hand(self, aggregation: Any, expected: list[float]) -> None:
        got = token_weights(self.LENGTHS, aggregation, part_rows=2)
        np.testing.assert_allclose(got, expected, rtol=1e-15)

    @given(
        st.lists(st.integers(1, 40), min_size=1, max_size=30),
        st.sampled_from(get_args(Aggregation)),
        st.integers(1, 35),
    )
    def test_they_add_up_to_one(self, lengths: list[int], aggregation: Any, part: int) -> None:
        """Weights of all tokens add up to one, whatever the lengths."""
        array = np.array(lengths)
        assert array @ token_weights(array, aggregation, part) == pytest.approx(1, abs=1e-12)

    def test_one_part_is_the_mean_over_tokens(self) -> None:
        """With one part, or with parts of equal length, the weights are those of the token mean."""
        whole = token_weights(self.LENGTHS, "token-mean", 1)
        assert token_weights(self.LENGTHS, "micro-batch-mean", 5).tolist() == whole.tolist()
        assert len(set(token_weights(np.full(6, 4), "micro-batch-mean", 2))) == 1


class TestPlan:
    def test_denominators_count_what_is_dropped(self) -> None:
        """Dropping steps does not change the weights of the remaining steps."""
        source = columns()
        source["advantage"][[0, 3, 4]] = 0.0
        for aggregation in get_args(Aggregation):
            whole, part = (
                plan_update(
                    source,
                    LearnerSettings(
                        loss_aggregation=aggregation,
                        micro_batch_steps=2,
                        minibatch_size=3,
                        num_epochs=2,
                        drop_zero_advantage=drop,
                    ),
                    np.random.default_rng(0),
                )
                for drop in (False, True)
            )
            for all_rows, kept in zip(whole, part, strict=True):
                assert all_rows.trained.tolist() == all_rows.rows.tolist() == kept.rows.tolist()
                weights = dict(zip(all_rows.trained.tolist(), all_rows.weight, strict=True))
                assert set(kept.trained) == set(all_rows.trained) & {1, 2, 5}
                assert [weights[row] for row in kept.trained.tolist()] == kept.weight.tolist()


def test_rows_stay_in_host_memory(model_path: str) -> None:
    """Batches stay in host memory; only micro-batches are moved to the learner's device."""
    learner = build_learner(model_path)
    rows = SampleBatch(make_columns(llm_of(learner)))
    given = TrainingData(batch=MultiAgentBatch({DEFAULT_MODULE_ID: rows}, env_steps=len(rows)))
    learner._device = torch.device("meta")
    batch = learner._make_batch_if_necessary(given)
    assert {column.device for column in batch.policy_batches[DEFAULT_MODULE_ID].values()} == {CPU}


class TestHowPassesAreComputed:
    """Options that change speed or memory, against the plain pass in float32."""

    def test_checkpointing(self, model_path: str) -> None:
        """Checkpointing gives the same gradients and keeps fewer activations."""
        plain, before = update_gradients(model_path)
        got, after = update_gradients(model_path, gradient_checkpointing=True)
        torch.testing.assert_close(got, plain, rtol=1e-4, atol=1e-6)
        assert after < 0.7 * before

    @pytest.mark.parametrize("checkpointing", [False, True])
    def test_no_dropout(self, model_path: str, tmp_path: Path, checkpointing: bool) -> None:
        """Dropout is disabled, even if the model's config enables it."""
        llm = Qwen2ForCausalLM.from_pretrained(model_path)
        llm.config.attention_dropout = 0.5
        llm.save_pretrained(tmp_path)
        plain, got = (
            update_gradients(path, gradient_checkpointing=checkpointing)[0]
            for path in (model_path, str(tmp_path))
        )
        torch.testing.assert_close(got, plain, rtol=1e-4, atol=1e-6)

    def test_bfloat16(self, model_path: str) -> None:
        """With bfloat16, gradients are float32 and similar to those of float32, but not equal."""
        plain, _ = update_gradients(model_path)
        got, _ = update_gradients(model_path, compute_dtype="bfloat16")
        assert {gradient.dtype for gradient in got.values()} == {torch.float32}
        vectors = [torch.cat([g.ravel() for g in each.values()]) for each in (plain, got)]
        similarity = torch.cosine_similarity(*vectors, dim=0)
        assert 0.98 < similarity < 0.9999999

    def test_the_type_on_each_device(
        self, model_path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By default, policy and reference compute in float32 on a CPU and in bfloat16 on a GPU."""
        assert LearnerSettings().compute_dtype == "auto"
        for choice in ("float32", "bfloat16"):
            assert resolve_compute_dtype(choice, on_gpu=True) == choice
            assert resolve_compute_dtype(choice, on_gpu=False) == choice
        learner = build_learner(model_path)
        assert learner._reference is not None
        used: list[tuple[str, torch.dtype, bool]] = []

        def record(device: str, dtype: torch.dtype, enabled: bool, **_: Any) -> nullcontext:
            used.append((device, dtype, enabled))
            return nullcontext()

        monkeypatch.setattr(torch, "autocast", record)
        for scorer in (learner.policy.scorer, learner._reference):
            for device in ("cpu", "cuda"):
                scorer({"ids": SimpleNamespace(device=torch.device(device))})
        expected = [("cpu", torch.float32, False), ("cuda", torch.bfloat16, True)]
        assert used == expected * 2

    @pytest.mark.parametrize("tied", [True, False])
    def test_a_frozen_model_is_smaller_and_computes_the_same(self, tied: bool) -> None:
        """Matrices are stored in bfloat16, other parameters in float32; results do not change."""
        llm = Qwen2ForCausalLM(Qwen2Config(**QWEN.to_dict() | {"tie_word_embeddings": tied}))
        config = {"temperature": 0.8, "entropy_gradient": False, "gradient_checkpointing": False}
        scorer = TokenScorer(
            llm,
            None,
            config | {"compile": False, "compute_dtype": "bfloat16"},
        )
        batch = token_batch(make_columns(llm), np.arange(7), CPU)
        with torch.no_grad():
            expected = scorer(batch)
            scorer.freeze(CPU)
            torch.testing.assert_close(scorer(batch), expected, rtol=0, atol=0)
        types = {name: parameter.dtype for name, parameter in llm.named_parameters()}
        low = {name for name, dtype in types.items() if dtype == torch.bfloat16}
        assert low == {name for name in types if "proj" in name or name == "lm_head.weight"}
        assert not any(parameter.requires_grad for parameter in llm.parameters())
