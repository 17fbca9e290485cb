"""Data exchanged between rollouts, learner and policy server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PublishedWeights:
    """One version of the policy's weights in checkpoint form, as sent by a transport."""

    dtype: str
    """Torch's name of the dtype of all tensors."""
    tensors: dict[str, NDArray[Any]]
    """Arrays by checkpoint name. bfloat16, which NumPy lacks, is int16 with the same bits."""
    adapter: Mapping[str, Any] | None = None
    """Content of peft's adapter_config.json if the tensors are LoRA adapters of the server's
    initial model; None: a full model."""


@dataclass(frozen=True)
class WeightTag:
    """Version and location of the policy's weights.

    The weights are kept while the tag exists.
    """

    publisher: str
    """Name of the publisher. Numbers of different publishers cannot be compared."""
    number: int
    """Number of the update, counted by the publisher."""
    handle: Any
    """The transport's handle of the weights; None: the weights that the server started with."""

    @property
    def version(self) -> str:
        """Version string ``<publisher>:<number>``."""
        return f"{self.publisher}:{self.number}"

    def replaces(self, held: "WeightTag") -> bool:
        """Whether an engine that holds `held` must load this version when it is requested.

        Older versions are not loaded. The starting weights are older than all others.
        """
        if self.handle is None:
            return False
        return self.publisher != held.publisher or self.number > held.number


STARTING_WEIGHTS = WeightTag("start", 0, None)


@dataclass(frozen=True)
class Prompt:
    """Prompt of one response."""

    token_ids: Sequence[int]
    seed: int | None = None
    """Seed of this response, which makes it independent of other requests; None: engine's seed."""
    session: str = ""
    """Prompts of a session share a prefix, which the replica of earlier ones has in its cache."""
    grammar: str | None = None
    """Structural tag (JSON) that the response has to match; None: any response."""


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of responses."""

    temperature: float
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    """A response ends with (and includes) the first of these tokens."""


@dataclass(frozen=True)
class Generation:
    """One response, exactly as the engine sampled it."""

    token_ids: NDArray[np.int32]
    """Shape ``(tokens,)``."""
    logp: NDArray[np.float32]
    """Log-probability of each token under the sampling distribution, shape ``(tokens,)``."""
    version: str
    """Version of the weights that sampled the response, or its last token if `versions` is set."""
    finish_reason: str
    """``stop``, or ``length`` at the token limit."""
    engine_s: float
    """Seconds that the request spent in the engine, including its queue."""
    versions: tuple[tuple[str, int], ...] = ()
    """Versions in order, each with its number of tokens; empty if one version sampled all tokens.
    ``policy_server.update_mode: keep`` mixes versions; ``wait`` only if vLLM had preempted the
    response because its KV cache was full."""


class RequestFailedError(RuntimeError):
    """The engine could not respond to a prompt; other prompts of the call are not affected."""


class EngineDiedError(RuntimeError):
    """The engine of a replica exited, or failed in an update; Serve replaces the replica."""
