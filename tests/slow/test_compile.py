"""torch.compile does not change gradients. `pytest -m slow` (needs a C++ compiler on a CPU)."""

import shutil

import pytest
import torch
from torch import Tensor

from tests.unit.conftest import model_path
from tests.unit.learner.learner_reference import update_gradients

__all__ = ["model_path"]  # fixture
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"),
]


def gradients(model_path: str, dtype: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the gradients without and with compilation."""
    plain, _ = update_gradients(model_path, compute_dtype=dtype)
    torch._dynamo.reset()
    compiled, _ = update_gradients(model_path, compute_dtype=dtype, compile=True)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0, "nothing was compiled"
    return plain, compiled


def test_a_compiled_model_has_the_same_gradients(model_path: str) -> None:
    plain, compiled = gradients(model_path, "float32")
    for name, gradient in plain.items():
        torch.testing.assert_close(compiled[name], gradient, rtol=1e-3, atol=1e-5)
        assert (compiled[name] - gradient).norm() <= 1e-3 * gradient.norm(), name


def test_in_bfloat16_they_differ_by_rounding(model_path: str) -> None:
    plain, compiled = gradients(model_path, "bfloat16")
    for name, gradient in plain.items():
        assert (compiled[name] - gradient).norm() <= 0.15 * gradient.norm(), name
