"""torch.compile changes no gradient. `pytest -m slow` (needs a C++ compiler on a CPU)."""

import shutil

import pytest
import torch

from tests.unit.learner.learner_reference import model_path
from tests.unit.learner.test_learner import TestHowPassesAreComputed

__all__ = ["model_path"]  # fixture
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.15)])
def test_a_compiled_model_has_the_same_gradients(
    model_path: str, dtype: str, tolerance: float
) -> None:
    plain, _ = TestHowPassesAreComputed.gradients(model_path, compute_dtype=dtype)
    torch._dynamo.reset()
    got, _ = TestHowPassesAreComputed.gradients(model_path, compute_dtype=dtype, compile=True)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0, "nothing was compiled"
    for name, gradient in plain.items():
        assert (got[name] - gradient).norm() <= tolerance * gradient.norm(), name
