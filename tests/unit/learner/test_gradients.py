"""The learner's update against a plain implementation, for every option, and its invariants."""

from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hgpo_rllib.learner.learner import HGPOLearner
from hgpo_rllib.learner.optimizer import learning_rate
from hgpo_rllib.metrics import find_metric
from hgpo_rllib.settings.learner import Aggregation, LearnerSettings
from tests.unit.learner.learner_reference import (
    add_values,
    assert_equal,
    crossed,
    frozen_of,
    llm_of,
    make_columns,
    make_learner,
    parameters_and_gradients,
    reference_update,
    update,
)

slowly = settings(max_examples=settings().max_examples // 5)
RECOMPUTED = {"old_logp": "recomputed"}
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no KL": {"kl_coeff": 0},
    "bounds apart": {"clip_low": 0.1, "clip_high": 0.4},
    "dual clip": {"dual_clip": 1.1},
    "recomputed": RECOMPUTED,
    "seq-mean": {"loss_aggregation": "seq-mean"},
    "micro-batch-mean": {"loss_aggregation": "micro-batch-mean", "micro_batch_steps": 2},
    "k1": {"kl_estimator": "k1"},
    "k2": {"kl_estimator": "k2"},
    "k3": {"kl_estimator": "k3"},
    "clamped KL": {"kl_clamp": 0.05},
    "entropy": {"entropy_coeff": 0.3},
    "entropy, no KL": {"entropy_coeff": 0.3, "kl_coeff": 0},
    "dropped": {"drop_zero_advantage": True},
    "dropped, seq-mean": {"drop_zero_advantage": True, "loss_aggregation": "seq-mean"},
    "dropped, micro-batch-mean": {
        "drop_zero_advantage": True,
        "loss_aggregation": "micro-batch-mean",
        "micro_batch_steps": 2,
        "entropy_coeff": 0.3,
    },
    "token weights": RECOMPUTED | {"importance_cap": 1.2},
    "ratio of a response": {"ratio_level": "sequence", "loss_aggregation": "seq-mean"},
    "mean ratio of a response": {"ratio_level": "sequence-mean", "dual_clip": 3.0},
    "CISPO": {"policy_loss": "cispo", "clip_low": 1, "clip_high": 0.1},
    "CISPO, both bounds": {"policy_loss": "cispo", "clip_low": 0.1, "clip_high": 0.1},
    "CISPO of a response": {"policy_loss": "cispo", "ratio_level": "sequence", "clip_high": 0.1},
    "sequence weights": RECOMPUTED | {"importance_cap": 1.2, "importance_level": "sequence"},
    "token mask": RECOMPUTED | {"importance_mask": (0.8, 1.5)},
    "sequence mask": RECOMPUTED | {"importance_mask": (0.5, 2), "importance_level": "sequence"},
    "weights and mask": RECOMPUTED | {"importance_cap": 1.2, "importance_mask": (0.6, 1.4)},
    "gradient clip": {"grad_clip": 0.01},
    "optimizer": {"adam_betas": (0.5, 0.9), "weight_decay": 0.7},
    "released": RECOMPUTED
    | {
        "dual_clip": 3,
        "entropy_coeff": 0.001,
        "kl_clamp": 10,
        "loss_aggregation": "micro-batch-mean",
        "micro_batch_steps": 2,
    },
}
WITHOUT_ORDER = [n for n, o in OPTIONS.items() if "micro_batch_steps" not in o]
# One optimizer step; several steps, the later ones off-policy; several epochs.
SHAPES: dict[str, dict[str, Any]] = {
    "one mini-batch": {"minibatch_size": 100},
    "three": {"minibatch_size": 3},
    "two epochs": {"minibatch_size": 4, "num_epochs": 2},
}
COMMON: dict[str, Any] = {
    "lr": 3e-3,
    "weight_decay": 0.1,
    "kl_coeff": 0.5,
    "grad_clip": 1e9,
    "mismatch_alarm": None,
    "micro_batch_tokens": 25,
}


@pytest.fixture(scope="module")
def columns(model_path: str) -> dict[str, Tensor]:
    """Return seven steps; the engine's log-probabilities differ slightly from the model's."""
    return make_columns(llm_of(make_learner(model_path)))


@pytest.mark.parametrize(
    ("options", "shape"), crossed(OPTIONS, SHAPES, "defaults", "recomputed", "released")
)
def test_gradients_are_those_of_the_reference(
    model_path: str, columns: dict[str, Tensor], options: dict[str, Any], shape: dict[str, Any]
) -> None:
    """Parameters and last gradients equal those of the reference, with small micro-batches."""
    chosen = COMMON | options | shape
    learner = make_learner(model_path, **chosen)
    expected = reference_update(
        llm_of(learner), frozen_of(learner), columns, LearnerSettings(**chosen)
    )
    update(learner, columns)
    assert_equal(
        parameters_and_gradients(llm_of(learner)), parameters_and_gradients(expected), 1e-8
    )


def test_the_options_matter(model_path: str, columns: dict[str, Tensor]) -> None:
    """All options change the update of this batch; otherwise the test above would be void."""
    results: dict[str, Tensor] = {}
    for name, options in OPTIONS.items():
        learner = make_learner(model_path, **COMMON | options | SHAPES["three"])
        update(learner, columns)
        results[name] = torch.cat([p.flatten() for p in parameters_and_gradients(llm_of(learner))])
    same = {("defaults", "k3")}
    names = list(results)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            apart = (results[first] - results[second]).abs().max() > 1e-5
            assert apart == ((first, second) not in same), (first, second)


class TestInvariants:
    """Changes that must not affect a result, for random batches and every aggregation."""

    @slowly
    @given(st.integers(0, 99), st.integers(1, 400), st.sampled_from(sorted(OPTIONS)))
    def test_micro_batching(self, model_path: str, seed: int, budget: int, name: str) -> None:
        """The size of micro-batches does not change the result of several mini-batches."""
        chosen = COMMON | OPTIONS[name] | SHAPES["three"]
        whole = make_learner(model_path, **chosen | {"micro_batch_tokens": 10**6})
        batch = make_columns(llm_of(whole), 8, seed)
        parts = make_learner(model_path, **chosen | {"micro_batch_tokens": budget})
        for learner in (whole, parts):
            update(learner, batch)
        assert_equal(
            parameters_and_gradients(llm_of(whole)), parameters_and_gradients(llm_of(parts)), 1e-10
        )

    @slowly
    @given(st.integers(0, 99), st.permutations(range(8)), st.sampled_from(WITHOUT_ORDER))
    def test_order_of_steps(self, model_path: str, seed: int, order: list[int], name: str) -> None:
        """The order of the steps in a mini-batch does not change the result."""
        learners = [
            make_learner(model_path, **COMMON | OPTIONS[name] | SHAPES["one mini-batch"])
            for _ in range(2)
        ]
        batch = make_columns(llm_of(learners[0]), 8, seed)
        update(learners[0], batch)
        update(learners[1], {key: column[order] for key, column in batch.items()})
        first, second = (parameters_and_gradients(llm_of(learner)) for learner in learners)
        assert_equal(first, second, 1e-10)

    @slowly
    @given(
        st.integers(0, 99),
        st.sampled_from(sorted(SHAPES)),
        st.sampled_from(get_args(Aggregation)),
        st.sampled_from(["behavior", "recomputed"]),
    )
    def test_dropping_is_exact(
        self, model_path: str, seed: int, shape: str, aggregation: str, old_logp: str
    ) -> None:
        """Without KL and entropy terms, dropping steps with advantage 0 changes nothing."""
        chosen = COMMON | SHAPES[shape] | {"kl_coeff": 0, "micro_batch_steps": 2}
        chosen |= {"loss_aggregation": aggregation, "old_logp": old_logp}
        kept, dropped = (
            make_learner(model_path, **chosen, drop_zero_advantage=drop) for drop in (False, True)
        )
        batch = make_columns(llm_of(kept), 8, seed)
        for learner in (kept, dropped):
            update(learner, batch)
        assert_equal(
            parameters_and_gradients(llm_of(kept)), parameters_and_gradients(llm_of(dropped)), 1e-10
        )


def test_a_mini_batch_without_a_step_left_is_a_step_of_gradient_0(model_path: str) -> None:
    """A mini-batch whose steps are all dropped still applies momentum and weight decay."""
    kept, dropped = (
        make_learner(
            model_path, **COMMON | {"minibatch_size": 2, "kl_coeff": 0}, drop_zero_advantage=drop
        )
        for drop in (False, True)
    )
    batch = make_columns(llm_of(kept), 8)
    batch["advantage"] = torch.tensor([0.0] * 7 + [1.0])
    for learner in (kept, dropped):
        update(learner, batch)
    assert_equal(
        parameters_and_gradients(llm_of(kept)), parameters_and_gradients(llm_of(dropped)), 1e-12
    )


def forward_passes(learner: HGPOLearner, batch: dict[str, Tensor]) -> int:
    """Return the number of rows in all forward passes of an update, with or without gradient."""
    rows = 0

    def count(module: Any, args: Any, kwargs: Any) -> None:
        nonlocal rows
        rows += len(kwargs["input_ids"])

    hook = llm_of(learner).base_model.register_forward_pre_hook(count, with_kwargs=True)
    update(learner, batch)
    hook.remove()
    return rows


@pytest.mark.parametrize(
    ("chosen", "rows"),
    [
        ({"minibatch_size": 100}, 8),
        ({"minibatch_size": 4}, 8),
        ({"minibatch_size": 100, **RECOMPUTED}, 8),  # no additional pass is needed
        ({"minibatch_size": 4, **RECOMPUTED}, 8 + 4),
        ({"minibatch_size": 4, "num_epochs": 3, **RECOMPUTED}, 3 * 8 + 4),
        ({"minibatch_size": 100, "num_epochs": 2, **RECOMPUTED}, 2 * 8),
        ({"minibatch_size": 100, "drop_zero_advantage": True}, 5),
    ],
)
def test_passes_through_the_model(model_path: str, chosen: dict[str, Any], rows: int) -> None:
    """Old log-probabilities are recomputed only for rows that later optimizer steps need."""
    learner = make_learner(model_path, **COMMON | chosen)
    assert forward_passes(learner, make_columns(llm_of(learner), 8)) == rows


def test_the_learning_rate_of_each_step(model_path: str) -> None:
    """The schedule gets the numbers of optimizer steps and of updates."""
    chosen = {"lr": 1e-3, "lr_warmup_steps": 4, "lr_decay_iterations": 5, "lr_decay": "cosine"}
    learner = make_learner(model_path, **COMMON | chosen, minibatch_size=3)
    batch = make_columns(llm_of(learner), 9)
    (optimizer,) = learner._optimizer_parameters
    rates: list[float] = []
    optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
    for _ in range(2):
        update(learner, batch)
    expected = [learning_rate(LearnerSettings(**chosen), n, n // 3) for n in range(6)]
    assert rates == expected
    assert len(set(rates)) == 4  # warm-up, then one rate per iteration


def test_the_learning_rate_of_the_critic(model_path: str) -> None:
    """Warm-up and decay of the critic's rate are those of the policy's."""
    chosen = {"lr": 1e-3, "critic_lr": 4e-3, "lr_warmup_steps": 4, "lr_decay_iterations": 5}
    options = COMMON | chosen | {"minibatch_size": 3, "critic": "head", "estimator": "ppo"}
    learner = make_learner(model_path, **options)
    batch = add_values(make_columns(llm_of(learner), 9), learner)
    (optimizer,) = learner._optimizer_parameters
    rates: list[list[float]] = []
    optimizer.register_step_pre_hook(lambda o, *_: rates.append([g["lr"] for g in o.param_groups]))
    for _ in range(2):
        update(learner, batch)
    for n, (policy, critic) in enumerate(rates):
        assert policy == learning_rate(LearnerSettings(**chosen), n, n // 3)
        assert critic == pytest.approx(4 * policy)
    assert len(rates) == 6


def test_everything_reported_is_declared(model_path: str) -> None:
    """All metrics that the learner logs are declared."""
    chosen = COMMON | OPTIONS["weights and mask"] | {"critic": "head", "estimator": "ppo"}
    learner = make_learner(model_path, **chosen)
    reported = update(learner, add_values(make_columns(llm_of(learner)), learner)).keys()
    reported -= {"num_trainable_parameters"}
    assert reported == {
        *("loss", "policy_loss", "kl", "clip_fraction", "entropy", "grad_norm", "ratio_max"),
        *("behavior_logp_gap", "behavior_logp_gap_mean", "behavior_kl"),
        *("importance_weight", "importance_cut_fraction", "skipped_batches"),
        *("value_loss", "value_clip_fraction", "critic_grad_norm"),
    }
    for name in reported:
        assert find_metric(name)[0].name == name
