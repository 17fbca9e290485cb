"""Fixtures of several tests of the learner."""

import copy
import functools

import pytest
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from hgpo_rllib.learner import critic, learner, module
from hgpo_rllib.models import load_model

load_once = functools.cache(load_model)


@pytest.fixture(autouse=True)
def copied_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy models that were loaded before: it takes a tenth of the time of reading their files."""

    def load(path: str) -> PreTrainedModel:
        return copy.deepcopy(load_once(path))

    for user in (critic, learner, module):
        monkeypatch.setattr(user, "load_model", load)


@pytest.fixture
def exact_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute norms in float64, since the model's own norms round to float32."""

    def forward(norm: Qwen2RMSNorm, hidden: Tensor) -> Tensor:
        squares = hidden.square().mean(-1, True)
        return norm.weight * hidden * (squares + norm.variance_epsilon).rsqrt()

    monkeypatch.setattr(Qwen2RMSNorm, "forward", forward)
