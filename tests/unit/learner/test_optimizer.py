"""Learning rates, and optimizer moments that are offloaded to host memory."""

import copy
from typing import Any

import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID

from hgpo_rllib.learner.optimizer import OffloadedMoments, learning_rate
from hgpo_rllib.settings.learner import LearnerSettings
from tests.unit.learner.learner_reference import (
    assert_equal,
    llm_of,
    make_columns,
    make_learner,
    update,
)


def storage(optimizer: torch.optim.Optimizer) -> int:
    """Return the size of the moments on the device, in bytes."""
    tensors = [value for state in optimizer.state.values() for value in state.values()]
    return sum(t.untyped_storage().nbytes() for t in tensors if t.dim())


@pytest.mark.parametrize("enabled", [True, False])
def test_steps(enabled: bool) -> None:
    """Offloading does not change AdamW's steps, and frees the moments' memory between steps."""
    torch.manual_seed(0)
    start = [torch.randn(3, 4), torch.randn(5)]
    both = [[tensor.clone().requires_grad_() for tensor in start] for _ in range(2)]
    optimizers = [torch.optim.AdamW(parameters, lr=0.1) for parameters in both]
    moments = OffloadedMoments(optimizers[0], enabled)
    for _ in range(3):
        gradients = [torch.randn_like(tensor) for tensor in start]
        for parameters in both:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
        with moments.loaded():
            optimizers[0].step()
        optimizers[1].step()
        assert storage(optimizers[0]) == (0 if enabled else 2 * 4 * (12 + 5))
    assert_equal(*both, 0)


def test_updates_and_states(model_path: str) -> None:
    """Offloading changes no parameter, also after restoring a state during the warm-up."""
    chosen = {"lr": 1e-2, "lr_warmup_steps": 9, "minibatch_size": 3, "mismatch_alarm": None}
    plain, offloaded, resumed = (
        make_learner(model_path, **chosen, offload_optimizer=offload)
        for offload in (False, True, True)
    )
    columns = make_columns(llm_of(plain))
    for learner in (plain, plain, offloaded):
        update(learner, columns)
    resumed.policy.set_state(offloaded.policy.get_state())
    resumed._set_optimizer_state(offloaded._get_optimizer_state())
    resumed._weights_seq_no = 1
    for learner in (offloaded, resumed):
        assert storage(learner.get_optimizer(DEFAULT_MODULE_ID)) == 0
        update(learner, columns)
        assert storage(learner.get_optimizer(DEFAULT_MODULE_ID)) == 0
        assert_equal(llm_of(learner).parameters(), llm_of(plain).parameters(), 0)
    assert storage(plain.get_optimizer(DEFAULT_MODULE_ID)) > 0


def test_changed_options(model_path: str) -> None:
    """A restored learner uses the saved moments with its own options."""
    chosen: dict[str, Any] = {"lr": 1e-2, "mismatch_alarm": None}
    options: dict[str, Any] = {"weight_decay": 0.9, "adam_betas": (0.5, 0.6)}
    before, resumed = (
        make_learner(model_path, **chosen),
        make_learner(model_path, **chosen, **options),
    )
    columns = make_columns(llm_of(before))
    update(before, columns)
    resumed.policy.set_state(before.policy.get_state())
    resumed._set_optimizer_state(before._get_optimizer_state())
    resumed._weights_seq_no = 1
    for group in before.get_optimizer(DEFAULT_MODULE_ID).param_groups:
        group.update(weight_decay=0.9, betas=(0.5, 0.6))
    for learner in (before, resumed):
        update(learner, columns)
    assert_equal(llm_of(resumed).parameters(), llm_of(before).parameters(), 0)


def test_a_state_from_before_the_first_step(model_path: str) -> None:
    """A learner that is restored from such a state learns like a new one."""
    new, resumed = (make_learner(model_path, lr=1e-2, mismatch_alarm=None) for _ in range(2))
    resumed._set_optimizer_state(new._get_optimizer_state())
    columns = make_columns(llm_of(new))
    for learner in (new, resumed):
        update(learner, columns)
    assert_equal(llm_of(resumed).parameters(), llm_of(new).parameters(), 0)


def test_a_state_is_a_copy(model_path: str) -> None:
    """Later updates of the learner that saved or loaded a state do not change it."""
    learner, resumed = (make_learner(model_path, lr=1e-2, mismatch_alarm=None) for _ in range(2))
    columns = make_columns(llm_of(learner))
    update(learner, columns)
    parameters, optimizer = learner.policy.get_state(), learner._get_optimizer_state()
    before = copy.deepcopy((parameters, optimizer["state"]))
    resumed._set_optimizer_state(optimizer)
    for each in (learner, resumed):
        update(each, columns)
    torch.testing.assert_close((parameters, optimizer["state"]), before, rtol=0, atol=0)


class TestLearningRate:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({}, [1.0, 1.0, 1.0, 1.0]),
            ({"lr_decay_iterations": 4}, [1.0, 0.75, 0.5, 0.0]),
            ({"lr_decay_iterations": 4, "lr_decay": "cosine"}, [1.0, 0.8535533906, 0.5, 0.0]),
            ({"lr_decay": "cosine"}, [1.0, 1.0, 1.0, 1.0]),
        ],
    )
    def test_decay(self, given: dict[str, Any], expected: list[float]) -> None:
        """The decay counts iterations and stays at 0 after the last one."""
        chosen = LearnerSettings(lr=2.0, **given)
        rates = [learning_rate(chosen, 100, iteration) / 2 for iteration in (0, 1, 2, 9)]
        assert rates == pytest.approx(expected, abs=1e-9)

    def test_warm_up(self) -> None:
        """The warm-up counts optimizer steps and is multiplied with the decay."""
        chosen = LearnerSettings(lr=1.0, lr_warmup_steps=4, lr_decay_iterations=2)
        assert [learning_rate(chosen, step, 0) for step in (0, 1, 3, 4)] == [0.25, 0.5, 1, 1]
        assert learning_rate(chosen, 1, 1) == 0.25
