"""What several tests of the learner share."""

import pytest
from torch import Tensor
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm


@pytest.fixture
def exact_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep float64: the model's own norms round to float32, also gradients."""

    def forward(norm: Qwen2RMSNorm, hidden: Tensor) -> Tensor:
        squares = hidden.square().mean(-1, True)
        return norm.weight * hidden * (squares + norm.variance_epsilon).rsqrt()

    monkeypatch.setattr(Qwen2RMSNorm, "forward", forward)
