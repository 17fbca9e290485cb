"""torch.compile changes no gradient. `pytest -m slow` (needs a C++ compiler on a CPU)."""

import shutil

import pytest
import torch

from tests.unit.learner.learner_reference import model_path
from tests.unit.learner.test_learner import TestHowPassesAreComputed

__all__ = ["model_path"]  # fixture
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_model_has_the_same_gradients(model_path: str) -> None:
    plain, _ = TestHowPassesAreComputed.gradients(model_path)
    torch._dynamo.reset()
    got, _ = TestHowPassesAreComputed.gradients(model_path, compile=True)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0, "nothing was compiled"
    for name, gradient in plain.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-3, atol=1e-5)
