"""The estimator's memory: the right number, and nothing traced in a process with threads."""

import tracemalloc

import numpy as np
import pytest

from hgpo_rllib.advantages import EstimatorSettings, memory
from tests.unit.advantage_batches import arrays

STEPS = arrays([(0, list(range(40)), [0.0] * 39 + [float(member)]) for member in range(50)])


def test_peak_memory_counts_what_is_freed_again() -> None:
    """Two arrays of 8 MiB that live at once, and nothing of what was there before."""
    already = np.ones(2**20)

    def work() -> float:
        return float((np.ones(2**20) + np.ones(2**20)[:1]).sum() + already[0])

    assert 16 <= memory.peak_mib(work) < 25


def test_an_estimator_is_measured_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """HGPO at two depths holds more; Python's tracing never starts here."""
    monkeypatch.setattr(tracemalloc, "start", lambda: pytest.fail("traced beside Ray's threads"))
    peaks = [
        memory.estimator_peak_mib("hgpo", STEPS, EstimatorSettings(context_length=k))
        for k in (0, 4)
    ]
    assert 2000 * 8 / 2**20 < peaks[0] < peaks[1] < 5


def test_a_run_goes_on_without_the_number(caplog: pytest.LogCaptureFixture) -> None:
    assert np.isnan(memory.estimator_peak_mib("no such", STEPS, EstimatorSettings()))
    (record,) = caplog.records
    assert record.getMessage().startswith("the estimator's memory was not measured: ")
    assert "no such" in record.getMessage()
