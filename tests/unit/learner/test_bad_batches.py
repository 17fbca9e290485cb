"""Updates that would damage the policy end the run or are skipped, with a message."""

import logging
from typing import Any

import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from torch import Tensor

from hgpo_rllib.cli import main
from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.learner.bad_batches import REMEDY, SKIPPED, find_problem
from hgpo_rllib.learner.learner import HGPOLearner
from hgpo_rllib.learner.module import LLMModule
from tests.unit.learner.learner_reference import (
    llm_of,
    make_columns,
    make_learner,
    update,
)

STEPS = 8
# Two mini-batches of four steps.
COMMON: dict[str, Any] = {"lr": 1e-3, "minibatch_size": 4, "mismatch_alarm": None}


def weights_of(learner: HGPOLearner) -> Tensor:
    """Return all parameters as one vector."""
    return torch.cat([p.detach().flatten().clone() for p in llm_of(learner).parameters()])


def poison(batch: dict[str, Tensor], kind: str) -> None:
    """Make step 4 invalid."""
    column, value = {
        "loss": ("behavior_logp", float("nan")),
        "ratio": ("behavior_logp", -1000.0),
        "advantage": ("advantage", float("inf")),
    }[kind]
    batch[column][4] = value


def one_warning(caplog: pytest.LogCaptureFixture) -> str:
    """Return the only warning, which must be one line."""
    (record,) = (r for r in caplog.records if r.name == "hgpo_rllib.learner.learner")
    assert record.levelno == logging.WARNING
    assert "\n" not in record.getMessage()
    caplog.clear()
    return record.getMessage()


PROBLEMS = {
    "loss": "the loss is nan",
    "ratio": "a token ratio of 4.85e+08 exceeds learner.max_ratio=10000",
    "advantage": "the loss is ",  # inf - inf, or inf
}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_a_bad_mini_batch_ends_the_run(model_path: str, kind: str) -> None:
    """The run ends before the optimizer step, with one line that describes the mini-batch."""
    learner = make_learner(model_path, **COMMON)
    batch = make_columns(llm_of(learner), STEPS)
    poison(batch, kind)
    before = weights_of(learner)
    with pytest.raises(RunStoppedError) as error:
        update(learner, batch)
    message = str(error.value)
    assert "\n" not in message
    assert f"in update 1: {PROBLEMS[kind]}" in message
    assert "it has 4 steps, prompts of " in message
    assert message.endswith(REMEDY)
    first = message.startswith("bad mini-batch 1 of 2")
    assert torch.equal(weights_of(learner), before) == first
    assert weights_of(learner).isfinite().all()


def test_a_bad_gradient_of_a_finite_loss_ends_the_run(model_path: str) -> None:
    learner = make_learner(model_path, **COMMON)
    parameter = next(llm_of(learner).parameters())
    parameter.register_hook(lambda gradient: torch.full_like(gradient, float("inf")))
    before = weights_of(learner)
    with pytest.raises(RunStoppedError, match="in update 1: the gradient norm is inf"):
        update(learner, make_columns(llm_of(learner), STEPS))
    assert torch.equal(weights_of(learner), before)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_a_bad_mini_batch_is_left_out(
    model_path: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad mini-batch is skipped with a warning, and the other one is applied."""
    learner = make_learner(model_path, on_bad_batch="skip", **COMMON)
    batch = make_columns(llm_of(learner), STEPS)
    before = weights_of(learner)
    poison(batch, kind)
    results = update(learner, batch)
    message = one_warning(caplog)
    assert PROBLEMS[kind] in message
    assert message.endswith(SKIPPED)
    assert results["skipped_batches"] == 1
    for name in ("loss", "grad_norm", "ratio_max", "kl", "entropy"):
        assert torch.tensor(results[name]).isfinite(), name
    after = weights_of(learner)
    assert after.isfinite().all()
    assert not torch.equal(after, before)
    (state,) = {int(s["step"]) for s in learner.get_optimizer(DEFAULT_MODULE_ID).state.values()}
    assert state == 1


@pytest.mark.parametrize("of_tokens", [False, True])
def test_facts_of_the_batch(model_path: str, of_tokens: bool) -> None:
    """The message gives sizes and ranges, and counts values that are not finite separately."""
    learner = make_learner(model_path, **COMMON | {"minibatch_size": 100})
    batch = make_columns(llm_of(learner), 3)
    batch["prompt_length"] = torch.tensor([3, 9, 4])
    batch["response_length"] = torch.tensor([1, 5, 2])
    batch["advantage"] = torch.tensor([0.0, -1.25, 2.0])
    if of_tokens:
        batch["advantage"] = batch["advantage"][:, None].repeat(1, 5)
        batch["advantage"][2, 2:] = -99.0  # padding
    batch["behavior_logp"] = torch.full((3, 5), -2.0)
    batch["behavior_logp"][1] = torch.tensor([-0.5, float("nan"), -1, float("-inf"), -7.125])
    batch["behavior_logp"][0, 1:] = -99.0  # padding
    with pytest.raises(RunStoppedError) as error:
        update(learner, batch)
    assert (
        "it has 3 steps, prompts of 3 to 9 and responses of 1 to 5 tokens, 8 response tokens; "
        "advantages -1.25 to 2, zero in 1 of the steps; engine log-probabilities -7.125 to -0.5 "
        "(2 not finite)"
    ) in str(error.value)


def test_no_room_for_the_moments(model_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If AdamW's first step runs out of memory, the error names the remedy, even with "skip"."""
    learner = make_learner(model_path, on_bad_batch="skip", **COMMON)

    def run_out(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    monkeypatch.setattr(type(learner.get_optimizer()), "step", run_out)
    with pytest.raises(RunStoppedError, match=r"optimizer step: use learner\.offload_optimizer"):
        update(learner, make_columns(llm_of(learner), STEPS))


def test_parameters_that_are_not_finite_are_not_saved(
    model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optimizer step that makes parameters infinite ends the run, even with "skip"."""
    learner = make_learner(model_path, on_bad_batch="skip", **COMMON)

    def overflow(optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> None:
        optimizer.param_groups[0]["params"][0].data.fill_(float("inf"))

    monkeypatch.setattr(type(learner.get_optimizer()), "step", overflow)
    with pytest.raises(RunStoppedError, match=r"parameters are not finite.*a smaller learner\.lr"):
        update(learner, make_columns(llm_of(learner), STEPS))


def test_out_of_memory(model_path: str, caplog: pytest.LogCaptureFixture) -> None:
    """If a micro-batch runs out of memory, its whole mini-batch is skipped or ends the run."""
    chosen = COMMON | {"micro_batch_tokens": 1, "kl_coeff": 0}
    for policy in ("skip", "stop"):
        learner = make_learner(model_path, on_bad_batch=policy, **chosen)
        batch = make_columns(llm_of(learner), STEPS)
        passes = iter(range(STEPS))

        def run_out(*_: Any, passes: Any = passes) -> None:
            if next(passes) == 1:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

        llm_of(learner).base_model.register_forward_pre_hook(run_out)
        before = weights_of(learner)
        if policy == "skip":
            assert update(learner, batch)["skipped_batches"] == 1
            message = one_warning(caplog)
        else:
            with pytest.raises(RunStoppedError) as error:
                update(learner, batch)
            message = str(error.value)
            assert torch.equal(weights_of(learner), before)
        assert "bad mini-batch 1 of 2 in update 1: out of memory with " in message
        assert "learner.micro_batch_tokens=1: lower it (CUDA out of memory." in message


@pytest.mark.parametrize("failing", range(4))
def test_out_of_memory_in_the_first_mini_batch_of_two_epochs(
    model_path: str, failing: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps of the skipped mini-batch are measured once and have old log-probabilities later."""
    chosen = COMMON | {"micro_batch_tokens": 1, "kl_coeff": 0, "max_ratio": None}
    learner = make_learner(
        model_path, on_bad_batch="skip", old_logp="recomputed", num_epochs=2, **chosen
    )
    batch = make_columns(llm_of(learner), STEPS, noise=0.0)
    batch["behavior_logp"] += torch.arange(STEPS)[:, None]
    gaps = torch.arange(STEPS).repeat_interleave(batch["response_length"]).double()
    recomputed = STEPS // 2  # the first passes recompute, one per step of the other mini-batch
    passes = iter(range(100))

    def run_out(*_: Any) -> None:
        if next(passes) == recomputed + failing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    llm_of(learner).base_model.register_forward_pre_hook(run_out)
    results = update(learner, batch)
    assert "bad mini-batch 1 of 4 in update 1: out of memory" in one_warning(caplog)
    assert results["skipped_batches"] == 1
    assert weights_of(learner).isfinite().all()
    assert results["behavior_logp_gap_mean"] == pytest.approx(gaps.mean().item(), abs=1e-6)


@pytest.mark.parametrize(
    ("chosen", "signal"),
    [
        ({"kl_coeff": 0}, False),
        ({"kl_coeff": 0, "entropy_coeff": 0.1}, True),
        ({"kl_coeff": 0.1}, True),
        ({"kl_coeff": 0.1, "entropy_coeff": 0.1, "drop_zero_advantage": True}, False),
    ],
)
def test_no_signal(
    model_path: str,
    chosen: dict[str, Any],
    signal: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If all advantages are 0 and there is no other term, the update is skipped."""
    learner = make_learner(model_path, **COMMON | chosen)
    batch = make_columns(llm_of(learner), STEPS)
    update(learner, batch)  # now the optimizer has momentum
    before = weights_of(learner)
    batch["advantage"].zero_()
    changes: list[LLMModule] = []
    monkeypatch.setattr(LLMModule, "mark_weights_changed", lambda policy: changes.append(policy))
    results = update(learner, batch)
    assert torch.equal(weights_of(learner), before) == (not signal)
    assert len(changes) == signal
    if signal:
        assert not caplog.records
        return
    assert results["skipped_batches"] == 2
    assert torch.tensor(results["loss"]).isnan()  # RLlib's value for metrics that were not logged
    message = one_warning(caplog)
    assert "update 2: nothing to learn from, all advantages are 0 (8 steps" in message
    assert message.endswith("the update is skipped (learner.on_no_signal=skip)")
    stopping = make_learner(model_path, **COMMON | chosen, on_no_signal="stop")
    with pytest.raises(RunStoppedError, match="nothing to learn from, all advantages are 0"):
        update(stopping, batch)


@pytest.mark.parametrize(
    ("policy", "message"),
    [("stop", "update 1"), ("skip", "update 1: the policy's parameters are not finite")],
)
def test_parameters_that_are_no_numbers_are_never_saved(
    model_path: str, policy: str, message: str
) -> None:
    """A step that overflows the parameters ends the run, whatever `on_bad_batch` is."""
    learner = make_learner(model_path, **COMMON | {"lr": 1e200}, on_bad_batch=policy)
    with pytest.raises(RunStoppedError, match=message):
        update(learner, make_columns(llm_of(learner), STEPS))


@pytest.mark.parametrize(("gap", "alarm"), [(0.0, None), (0.0, 1e-9), (0.4, 1e-3), (0.4, None)])
def test_mismatch_alarm(
    model_path: str, gap: float, alarm: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning is logged if engine and learner differ by more than `mismatch_alarm`."""
    chosen = COMMON | {"mismatch_alarm": alarm, "old_logp": "recomputed"}
    learner = make_learner(model_path, **chosen)
    batch = make_columns(llm_of(learner), STEPS, noise=gap)
    results = update(learner, batch)
    if gap == 0:
        assert results["behavior_logp_gap"] < 1e-6  # columns are float32
        assert abs(results["behavior_kl"]) < 1e-9
    else:
        assert 0.02 < results["behavior_kl"] < 0.2  # about noise² / 2
        assert 0.2 < results["behavior_logp_gap_mean"] < 0.5 < results["behavior_logp_gap"]
    if gap == 0 or alarm is None:
        assert not caplog.records
        return
    message = one_warning(caplog)
    assert message.startswith("update 1: engine and learner disagree on sampled tokens: KL 0.")
    assert "exceeds learner.mismatch_alarm=0.001" in message
    assert message.endswith("; old_logp=recomputed with importance_cap=2 corrects for it")


def test_every_token_is_measured_once(model_path: str) -> None:
    """The mismatch covers every token once, though rows are recomputed or trained several times."""
    learner = make_learner(model_path, **COMMON, old_logp="recomputed", num_epochs=2)
    batch = make_columns(llm_of(learner), STEPS, noise=0.0)
    batch["behavior_logp"] += torch.arange(STEPS)[:, None]
    gaps = torch.arange(STEPS).repeat_interleave(batch["response_length"]).double()
    results = update(learner, batch)
    assert results["behavior_logp_gap_mean"] == pytest.approx(gaps.mean().item(), abs=1e-6)
    assert results["behavior_logp_gap"] == pytest.approx(STEPS - 1, abs=1e-6)


def test_find_problem() -> None:
    """NaN and infinite values are problems; `max_ratio` can be None."""
    good = {"loss": -1.0, "grad_norm": 2.0, "critic_grad_norm": 1.0, "ratio_max": 3.0}
    assert find_problem(good, max_ratio=3.0) is None
    assert find_problem(good | {"ratio_max": 1e6}, max_ratio=None) is None
    assert find_problem({"loss": 0.0, "grad_norm": 0.0}, max_ratio=3.0) is None
    for name in ("loss", "grad_norm", "critic_grad_norm"):
        for value in (float("nan"), float("inf"), float("-inf")):
            assert find_problem(good | {name: value}, max_ratio=3.0) is not None
    assert find_problem(good | {"ratio_max": 3.1}, max_ratio=3.0) is not None


def test_the_command_says_it_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error exits with code 1 and one line, without a traceback."""

    def stop(*_: Any, **__: Any) -> None:
        raise RunStoppedError("bad mini-batch 1 of 1 in update 1")

    monkeypatch.setattr(main, "app", stop)
    with pytest.raises(SystemExit) as left:
        main.main()
    assert left.value.code == 1
    assert capsys.readouterr().err == "hgpo: bad mini-batch 1 of 1 in update 1\n"
