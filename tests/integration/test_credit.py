"""`hgpo bench credit` with a real policy and real environments."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hgpo_rllib.bench import credit
from hgpo_rllib.bench.credit import Plan, bench_credit
from hgpo_rllib.bench.fidelity import measure
from hgpo_rllib.config import RunConfig

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("shared_server")]


def progress(done: int, total: int) -> None:
    assert done <= total <= 8


def test_values_of_sampled_steps(
    run_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credit, "ray_cluster", lambda *_, **__: nullcontext())
    plan = Plan(groups=2, steps=8, branches=4)
    folder, result = bench_credit(run_config, plan, tmp_path / "credit", progress)
    assert len(result.q) == len(result.v) == 8
    low, high = -run_config.algorithm.invalid_penalty, 10.0
    assert all(low <= value <= high for value in (*result.q, *result.v))
    assert max(result.q) > 0, "some branches win"
    assert np.isfinite(result.estimates["hgpo"]).all()
    assert len(result.estimates["hgpo"]) == 8
    estimate = np.array(result.estimates["hgpo"])[:, None]
    found = measure(estimate, np.subtract(result.q, result.v), np.array(result.error))
    assert np.isfinite(found["mse"]).all()

    def not_again(*_: Any) -> Any:
        raise AssertionError("everything was played")

    monkeypatch.setattr(credit, "served", not_again)
    (folder / credit.RESULT).unlink()
    assert bench_credit(run_config, plan, folder, progress) == (folder, result)
