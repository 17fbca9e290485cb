"""What travels between rollouts, learner and policy server."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class AdapterShape:
    """What LoRA adapters are, besides their tensors."""

    rank: int
    alpha: int
    """Their product is scaled by alpha / rank."""
    targets: tuple[str, ...]
    """Names of the layers that have them."""


@dataclass(frozen=True)
class PublishedWeights:
    """One version of the policy's weights in checkpoint form, as a transport carries it."""

    dtype: str
    """Torch's name of the type of all tensors."""
    tensors: dict[str, NDArray[Any]]
    """By name in the checkpoint; bfloat16, which NumPy lacks, as int16 with the same bits."""
    adapter: AdapterShape | None = None
    """These are LoRA adapters of the model that the server started with; None: a whole model."""


@dataclass(frozen=True)
class WeightTag:
    """Names one version of the policy's weights, and says where they are.

    The weights are kept for as long as the tag exists.
    """

    publisher: str
    """Who published them; numbers of different publishers cannot be compared."""
    number: int
    """Of the update, counted by the publisher."""
    weights: Any
    """What their transport fetches them by; None: those that the server started with."""

    @property
    def version(self) -> str:
        """``<publisher>:<number>``."""
        return f"{self.publisher}:{self.number}"

    def replaces(self, held: "WeightTag") -> bool:
        """Whether who holds `held` and is asked for this version has to load it.

        Not if it is older: the starting weights are older than all others.
        """
        if self.weights is None:
            return False
        return self.publisher != held.publisher or self.number > held.number


STARTING_WEIGHTS = WeightTag("start", 0, None)


@dataclass(frozen=True)
class Prompt:
    """What one response continues."""

    token_ids: Sequence[int]
    seed: int | None = None
    """Of this response alone: drawn alike whatever else the engine does. None: the engine's own."""
    session: str = ""
    """Prompts of one session begin alike: a replica that answered some has kept the beginning."""


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
    """Version of the weights that drew it, or its end where `versions` has several."""
    finish_reason: str
    """``stop``, or ``length`` at the token limit."""
    engine_s: float
    """Seconds that the engine had the request, queue included."""
    versions: tuple[tuple[str, int], ...] = ()
    """Which versions drew it and how many tokens each, in order; empty where one drew them all.
    Only ``policy_server.update_mode: keep`` mixes versions."""


class RequestFailedError(RuntimeError):
    """The engine could not answer one prompt; those that it shared a call with are answered."""


class EngineDiedError(RuntimeError):
    """The engine of a replica ended under a request; Serve replaces the replica."""
