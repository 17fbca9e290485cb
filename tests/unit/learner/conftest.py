"""Fixtures of several tests of the learner."""

import pytest
from torch import Tensor
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm


@pytest.fixture
def exact_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute norms in float64, since the model's own norms round to float32."""

    def forward(norm: Qwen2RMSNorm, hidden: Tensor) -> Tensor:
        squares = hidden.square().mean(-1, True)
        return norm.weight * hidden * (squares + norm.variance_epsilon).rsqrt()

    monkeypatch.setattr(Qwen2RMSNorm, "forward", forward)
