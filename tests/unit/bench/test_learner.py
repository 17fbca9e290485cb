"""The baseline of `hgpo bench learner` computes the same update as the learner."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from hgpo_rllib.bench import learner as bench
from hgpo_rllib.bench.learner import bench_learner, build_learner, planned_passes
from hgpo_rllib.bench.plain_loop import PlainLoop
from hgpo_rllib.config import RunConfig, load_config, parse_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.learner.batching import MAX_PADDING
from hgpo_rllib.models import load_model
from tests.unit.learner.learner_reference import make_columns


@pytest.fixture
def run(model_path: str) -> RunConfig:
    """Return a run with three mini-batches, small passes, a rising rate and a strong KL term."""
    learner = {"lr": 1e-2, "lr_warmup_steps": 4, "minibatch_size": 3, "micro_batch_tokens": 20}
    return parse_config(
        {
            "model": {"model_path": model_path},
            "rollout": {"temperature": 0.8},
            "learner": learner | {"kl_coeff": 0.3, "mismatch_alarm": None},
        }
    )


@pytest.mark.parametrize("changes", [{}, {"kl_clamp": 1e-3}, {"num_epochs": 2, "kl_coeff": 0.0}])
def test_the_same_update(run: RunConfig, changes: dict[str, Any]) -> None:
    """Two updates give equal weights; before the second, policy and reference differ."""
    run = run.model_copy(update={"learner": run.learner.model_copy(update=changes)})
    columns = make_columns(load_model(str(run.model.model_path)), steps=9)
    plain = PlainLoop(run, columns, torch.device("cpu"))
    update, parameters = build_learner(run, columns)
    start = [p.clone() for p in parameters()]
    for _ in range(2):
        plain.update()
        update()
    for before, expected, got in zip(start, plain.model.parameters(), parameters(), strict=True):
        assert (before - got).abs().max() > 1e-3
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


def test_the_same_type(run: RunConfig) -> None:
    """In bfloat16, the learner ends nearer to the bfloat16 loop than to the float32 loop."""
    columns = make_columns(load_model(str(run.model.model_path)), steps=9)
    passes = run.learner.model_copy(update={"compute_dtype": "bfloat16"})
    low = run.model_copy(update={"learner": passes})
    update, parameters = build_learner(low, columns)
    apart = []
    for loop in (PlainLoop(config, columns, torch.device("cpu")) for config in (low, run)):
        loop.update()
        apart.append(loop.model.parameters())
    update()
    got = list(parameters())
    same, other = (
        sum(float((a - b).abs().sum().detach()) for a, b in zip(each, got, strict=True))
        for each in apart
    )
    assert 0 < same < other / 2


@pytest.mark.parametrize(
    ("name", "value", "others"),
    [
        ("model.lora_rank", "4", []),
        ("learner.critic", "separate", ["algorithm.estimator=ppo"]),
        ("learner.shard_parameters", "true", ["cluster.num_learners=2"]),
        ("learner.old_logp", "recomputed", []),
        ("learner.entropy_coeff", "0.001", []),
        ("learner.ratio_level", "sequence", []),
        ("learner.policy_loss", "cispo", []),
        ("learner.dual_clip", "3", []),
        ("learner.kl_estimator", "k1", []),
        ("learner.loss_aggregation", "seq-mean", []),
    ],
)
def test_what_the_plain_loop_lacks(
    name: str, value: str, others: list[str], model_path: str
) -> None:
    run = load_config(None, [f"model.model_path={model_path}", f"{name}={value}", *others])
    with pytest.raises(ConfigError, match=f"^{name}: the plain loop"):
        bench_learner(run, steps=9, repeats=1)


def test_padding(run: RunConfig) -> None:
    """The planned passes over all steps have little padding."""
    columns = make_columns(load_model(str(run.model.model_path)), steps=40)
    assert 0 <= planned_passes(run, columns)["padding"] <= MAX_PADDING


def test_count_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The FLOP of one matrix product are counted exactly; the device's peak is plausible."""
    left, right = torch.ones(3, 5), torch.ones(5, 7)
    monkeypatch.setitem(bench._side, "update", lambda: left @ right)
    assert bench.count_flops() == 2 * 3 * 5 * 7
    monkeypatch.setattr(bench, "PRODUCTS", 1)
    assert 1e8 < bench.peak_flops("float32") < 1e15


def test_peak_memory_is_that_of_updates(monkeypatch: pytest.MonkeyPatch, run: RunConfig) -> None:
    """Peak memory excludes the large matrices that measure the device's speed."""
    columns = make_columns(load_model(str(run.model.model_path)), steps=9)
    peak = [1000]

    class SameProcess(nullcontext[Any]):
        def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
            found = function(*arguments)
            self.result = lambda: found
            return self

        def __enter__(self) -> Any:
            return self

    def peak_flops(choice: str) -> float:
        peak[0] += 2**30
        return 1.0

    monkeypatch.setattr(bench, "random_steps", lambda *_: columns)
    monkeypatch.setattr(bench, "new_process", SameProcess)
    monkeypatch.setattr(bench, "peak_bytes", lambda: peak[0])
    monkeypatch.setattr(bench, "resident", lambda: 0)
    monkeypatch.setattr(bench, "peak_flops", peak_flops)
    (summary,) = bench_learner(run, steps=9, repeats=1)["summary"]
    assert summary["learner_peak_mib"] == summary["plain_peak_mib"] == 1000 / 2**20
