"""The learner's arithmetic: losses, batching, token log-probabilities, means."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from hgpo_rllib.learner.batching import micro_batches, minibatches, token_batch
from hgpo_rllib.learner.learner import TokenMeans
from hgpo_rllib.learner.losses import clipped_policy_loss, k3_kl
from hgpo_rllib.learner.module import token_log_probs

quickly = settings(max_examples=60, deadline=None, derandomize=True)
CPU = torch.device("cpu")


class TestClippedLoss:
    @pytest.mark.parametrize(
        ("ratio", "advantage", "loss", "clipped"),
        [
            (1.0, 2.0, -2.0, False),
            (1.25, 2.0, -2.5, False),
            (1.5, 2.0, -2.6, True),  # clipped above at 1.3: no more to gain
            (0.5, 2.0, -1.0, False),  # a positive advantage always pulls a low ratio up
            (1.0, -2.0, 2.0, False),
            (0.9, -2.0, 1.8, False),
            (0.5, -2.0, 1.6, True),  # clipped below at 0.8: pushed down enough
            (1.5, -2.0, 3.0, False),  # a negative advantage always pushes a high ratio down
            (1.5, 0.0, 0.0, False),
        ],
    )
    def test_by_hand(self, ratio: float, advantage: float, loss: float, clipped: bool) -> None:
        """Both signs of the advantage inside, above and below the clip range."""
        behaviour = torch.tensor([-1.5])
        logp = (behaviour + np.log(ratio)).requires_grad_()
        got, flag = clipped_policy_loss(logp, behaviour, torch.tensor([advantage]), 0.2, 0.3)
        assert got.item() == pytest.approx(loss, abs=1e-6)
        assert flag.item() is clipped
        got.sum().backward()
        expected = 0.0 if clipped else -advantage * ratio
        assert logp.grad is not None
        assert logp.grad.item() == pytest.approx(expected, abs=1e-6)

    def test_gradient_at_ratio_one(self) -> None:
        """On the sampling policy the gradient of the loss is -advantage * grad logp."""
        torch.manual_seed(0)
        logits = torch.randn(5, 7, requires_grad=True)
        tokens, advantage = torch.randint(7, (5,)), torch.randn(5)
        logp = logits.log_softmax(-1)[torch.arange(5), tokens]
        loss, clipped = clipped_policy_loss(logp, logp.detach(), advantage, 0.2, 0.2)
        (got,) = torch.autograd.grad(loss.mean(), logits, retain_graph=True)
        (expected,) = torch.autograd.grad(-(advantage * logp).mean(), logits)
        torch.testing.assert_close(got, expected)
        assert not clipped.any()

    def test_a_step_follows_the_advantages(self) -> None:
        """One gradient step makes good tokens more and bad tokens less probable.

        Fails when advantages are negated, or come to other tokens than their own.
        """
        tokens = torch.tensor([0, 1, 2, 3])
        advantage = torch.tensor([1.0, -1.0, 0.5, -2.0])
        rows = torch.arange(4)
        logits = torch.zeros(4, 6, requires_grad=True)
        behaviour = logits.detach().log_softmax(-1)[rows, tokens]
        loss, _ = clipped_policy_loss(
            logits.log_softmax(-1)[rows, tokens], behaviour, advantage, 0.2, 0.2
        )
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        after = (logits - 0.1 * gradient).log_softmax(-1)[rows, tokens]
        change = after - behaviour
        assert (change.sign() == advantage.sign()).all()
        assert (change.argsort() == advantage.argsort()).all()

    def test_extreme_ratios_stay_finite(self) -> None:
        """Neither loss nor gradient overflows when a token's probability changed completely."""
        logp = torch.tensor([-1000.0, 0.0], requires_grad=True)
        loss, _ = clipped_policy_loss(
            logp, torch.tensor([0.0, -1000.0]), torch.tensor([1.0, -1.0]), 0.2, 0.2
        )
        loss.sum().backward()
        assert loss.isfinite().all()
        assert logp.grad is not None
        assert logp.grad.isfinite().all()


class TestKL:
    @quickly
    @given(st.floats(-15, 0), st.floats(-15, 0))
    def test_sign(self, logp: float, reference: float) -> None:
        """Never negative (in float64), and 0 for equal probabilities."""
        a, b = torch.tensor([logp, reference], dtype=torch.float64)
        assert k3_kl(a, b) >= 0
        assert k3_kl(a, a) == 0

    def test_expectation(self) -> None:
        """Averaged over all tokens with their probabilities it is the KL, in this direction."""
        torch.manual_seed(0)
        policy, reference = torch.randn(2, 5, dtype=torch.float64).log_softmax(-1)
        kl = (policy.exp() * (policy - reference)).sum()
        expected = (policy.exp() * k3_kl(policy, reference)).sum()
        torch.testing.assert_close(expected, kl)
        samples = torch.distributions.Categorical(logits=policy).sample((200_000,))
        mean = k3_kl(policy[samples], reference[samples]).mean()
        assert mean.item() == pytest.approx(kl.item(), rel=0.02)


class TestMinibatches:
    @quickly
    @given(st.integers(1, 200), st.integers(1, 60), st.integers(1, 3), st.integers(0, 9))
    def test_every_row_once_an_epoch(self, steps: int, size: int, epochs: int, seed: int) -> None:
        """Each epoch is a permutation, cut into parts that differ by one row at most."""
        parts = list(minibatches(steps, size, epochs, np.random.default_rng(seed)))
        assert len(parts) == epochs * max(1, round(steps / size))
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        each = len(parts) // epochs
        for epoch in range(epochs):
            taken = np.concatenate(parts[epoch * each : (epoch + 1) * each])
            assert sorted(taken) == list(range(steps))

    def test_every_epoch_is_shuffled_anew(self) -> None:
        """Also the first."""
        first, second = minibatches(50, 50, 2, np.random.default_rng(0))
        assert first.tolist() != sorted(first)
        assert first.tolist() != second.tolist()


class TestMicroBatches:
    @quickly
    @given(st.lists(st.integers(1, 40), min_size=1, max_size=40), st.integers(1, 120))
    def test_budget(self, lengths: list[int], budget: int) -> None:
        """Every row once; padded parts fit the budget unless a single row exceeds it alone."""
        array = np.array(lengths)
        rows = np.random.default_rng(0).permutation(len(lengths))[: -(-len(lengths) // 2)]
        parts = list(micro_batches(rows, array, budget))
        assert sorted(np.concatenate(parts)) == sorted(rows)
        for part in parts:
            assert len(part) == 1 or len(part) * array[part].max() <= budget
        for part, following in pairwise(parts):  # and no part is cut early
            assert (len(part) + 1) * array[following[0]] > budget


def columns() -> dict[str, Tensor]:
    """Return six steps with random tokens, lengths and numbers, right padded."""
    generator = torch.Generator().manual_seed(1)
    return {
        "prompt_ids": torch.randint(1, 50, (6, 9), generator=generator, dtype=torch.int32),
        "prompt_length": torch.tensor([9, 3, 1, 7, 5, 2]),
        "response_ids": torch.randint(1, 50, (6, 4), generator=generator, dtype=torch.int32),
        "response_length": torch.tensor([1, 4, 2, 3, 4, 1]),
        "behaviour_logp": torch.randn(6, 4, generator=generator),
        "advantage": torch.randn(6, generator=generator),
    }


class TestTokenBatch:
    @pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [4, 1, 2], [5], [2, 5]])
    def test_against_a_loop(self, rows: list[int]) -> None:
        """Every response token, in order, at its place, with its own numbers."""
        source = columns()
        batch = token_batch(source, np.array(rows), CPU)
        tokens = []
        for row, step in enumerate(rows):
            prompt = source["prompt_ids"][step, : source["prompt_length"][step]].tolist()
            response = source["response_ids"][step, : source["response_length"][step]].tolist()
            whole = prompt + response
            assert batch["ids"][row, : len(whole)].tolist() == whole
            for offset in range(len(response)):
                behaviour = source["behaviour_logp"][step, offset].item()
                advantage = source["advantage"][step].item()
                tokens.append((row, len(prompt) + offset, behaviour, advantage))
        names = ("row", "position", "behaviour_logp", "advantage")
        assert list(zip(*(batch[name].tolist() for name in names), strict=True)) == tokens
        lengths = source["prompt_length"][rows] + source["response_length"][rows]
        assert batch["ids"].shape == (len(rows), lengths.max())


@pytest.fixture(scope="module")
def llm() -> Qwen2ForCausalLM:
    """Return a tiny random Qwen2 with grouped heads."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    return Qwen2ForCausalLM(config).eval()


class TestTokenLogProbs:
    @pytest.mark.parametrize("temperature", [1.0, 0.7])
    def test_against_one_sequence_at_a_time(
        self, llm: Qwen2ForCausalLM, temperature: float
    ) -> None:
        """Padding, batching and the gathered positions change nothing."""
        source, rows = columns(), np.array([3, 0, 2, 1, 4])
        batch = token_batch(source, rows, CPU)
        with torch.no_grad():
            got = token_log_probs(llm, batch, temperature)
        logp, entropy = [], []
        for step in rows:
            start = int(source["prompt_length"][step])
            response = source["response_ids"][step, : source["response_length"][step]].long()
            prompt = source["prompt_ids"][step, :start].long()
            with torch.no_grad():
                logits = llm(input_ids=torch.cat([prompt, response])[None]).logits[0]
            predicted = (logits[start - 1 : -1].double() / temperature).log_softmax(-1)
            logp += predicted[torch.arange(len(response)), response].tolist()
            entropy += (-(predicted.exp() * predicted).sum(-1)).tolist()
        np.testing.assert_allclose(got["logp"].numpy(), logp, rtol=0, atol=1e-5)
        np.testing.assert_allclose(got["entropy"].numpy(), entropy, rtol=0, atol=1e-5)

    def test_gradient_flows_through_logp_only(self, llm: Qwen2ForCausalLM) -> None:
        """The entropy is a statistic."""
        got = token_log_probs(llm, token_batch(columns(), np.array([1, 2]), CPU), 1.0)
        assert got["logp"].requires_grad
        assert not got["entropy"].requires_grad


def test_token_means() -> None:
    """Sums over micro-batches are divided by all tokens; maxima are kept as they are."""
    means = TokenMeans()
    for values in ([1.0, 2.0, 3.0], [10.0]):
        means.add("loss", torch.tensor(values, requires_grad=True))
        means.add("half", torch.tensor(values) / 2)
        means.maximum("gap", torch.tensor(values))
        means.count += len(values)
    means.maximum("gap", torch.tensor([4.0]))
    assert means.means() == {"loss": 4.0, "half": 2.0, "gap": 10.0}
