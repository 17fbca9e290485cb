"""What travels between rollouts, learner and policy server."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class WeightTag:
    """Names one version of the policy's weights."""

    version: str
    """``<nonce>:<number of the update>``; compared for equality only."""
    path: str | None
    """Directory with ``model.safetensors``; None for the weights the server started with."""
    node: str | None = None
    """Ray node in whose memory `path` is; None: this one."""


STARTING_WEIGHTS = WeightTag("start", None)


@dataclass(frozen=True)
class Prompt:
    """What one response continues."""

    token_ids: Sequence[int]
    seed: int | None = None
    """Of this response alone: drawn alike whatever else the engine does. None: the engine's own."""


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn."""

    temperature: float
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    """A response ends with (and includes) the first of these tokens."""


@dataclass(frozen=True)
class Generation:
    """One response, exactly as the engine drew it."""

    token_ids: NDArray[np.int32]
    """Shape ``(tokens,)``."""
    logp: NDArray[np.float32]
    """Log-probability of each token under the sampling distribution, shape ``(tokens,)``."""
    version: str
    """Version of the weights that drew it."""
    finish_reason: str
    """``stop``, or ``length`` at the token limit."""


class RequestFailedError(RuntimeError):
    """The engine could not answer one prompt; those that it shared a call with are answered."""


class EngineDiedError(RuntimeError):
    """The engine of a replica ended under a request; Serve replaces the replica."""
