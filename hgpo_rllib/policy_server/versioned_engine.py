"""A vLLM engine that answers under the weights that a request names."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hgpo_rllib.policy_server.adapters import adapter_folder
from hgpo_rllib.policy_server.transfer import shared_with_engine
from hgpo_rllib.policy_server.types import (
    STARTING_WEIGHTS,
    EngineDiedError,
    Generation,
    Prompt,
    PublishedWeights,
    RequestFailedError,
    Sampling,
    WeightTag,
)
from hgpo_rllib.settings.policy_server import UpdateMode

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine.async_llm import AsyncLLM

ADAPTERS = "policy"  # vLLM's name of the LoRA adapters
Load = Callable[[], Awaitable[None]]
UNNAMED = "default"  # vLLM's version of the weights that an engine starts with


class VersionedEngine:
    """Generates responses under the weights that a request names.

    A request carries the tag of the weights it wants. An engine that holds older ones, or another
    publisher's, loads them first: updates need no broadcast, and an engine that was restarted
    catches up by itself. A request for older weights is answered under those that it holds.
    """

    def __init__(self, engine: "AsyncLLM", update_mode: UpdateMode):
        """Around an engine that has just started; `update_mode`: see `PolicyServerSettings`."""
        self._engine = engine
        self.update_mode = update_mode
        self._held = STARTING_WEIGHTS
        self._adapters: LoRARequest | None = None
        self._updating: asyncio.Task[None] | None = None
        self._broken: Exception | None = None
        self._request_numbers = itertools.count()

    async def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, weights: WeightTag
    ) -> list[Generation | RequestFailedError]:
        """One response to each prompt, drawn under `weights` or newer ones; an error instead of a
        response where the engine refuses a prompt.

        Raises:
            EngineDiedError: the engine has ended, or holds half an update.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            await self._load(weights)
            return await asyncio.gather(*(self._answer(prompt, sampling) for prompt in prompts))
        except EngineDeadError as error:
            raise EngineDiedError("the engine has ended") from error

    async def _load(self, wanted: WeightTag) -> None:
        """Hold `wanted`, or something newer."""
        while not self._broken and wanted.replaces(self._held):
            if self._updating is None or self._updating.done():
                self._updating = asyncio.create_task(self._update(wanted))
            # A request may be cancelled; an update must not stop half-way.
            await asyncio.shield(self._updating)
        if self._broken:
            raise EngineDiedError(f"new weights were not loaded: {self._broken}")

    async def _update(self, tag: WeightTag) -> None:
        """Give the engine other weights, and empty its prefix cache.

        The engine goes on until they are on this node. Then it makes new requests wait, and those
        under way are ended, thrown away or kept, as `update_mode` says.
        """
        assert tag.weights is not None, "no weights are older than those at the start"
        weights: PublishedWeights = await tag.weights
        received = self._receive_model if weights.adapter is None else self._receive_adapters
        async with received(weights) as load:
            try:
                await self._engine.pause_generation(mode=self.update_mode, clear_cache=True)
                await load()
                await self._engine.update_weight_version(tag.version)
                self._held = replace(tag, weights=None)  # Ray need not keep them for this replica
            except Exception as error:  # what it holds now is no version
                self._broken = error
            finally:
                await self._engine.resume_generation()

    @asynccontextmanager
    async def _receive_model(self, weights: PublishedWeights) -> AsyncIterator[Load]:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        async with shared_with_engine(weights) as arguments:

            async def load() -> None:
                await self._engine.start_weight_update()
                await self._engine.update_weights(WeightTransferUpdateRequest(arguments))
                await self._engine.finish_weight_update()

            yield load

    @asynccontextmanager
    async def _receive_adapters(self, weights: PublishedWeights) -> AsyncIterator[Load]:
        from vllm.lora.request import LoRARequest

        with adapter_folder(weights) as folder:

            async def load() -> None:
                new = LoRARequest(ADAPTERS, 1, str(folder), load_inplace=True)
                if not await self._engine.add_lora(new):
                    raise RuntimeError("the engine did not take the adapters")
                self._adapters = LoRARequest(ADAPTERS, 1, str(folder))

            yield load

    async def _answer(self, prompt: Prompt, sampling: Sampling) -> Generation | RequestFailedError:
        from vllm.v1.engine.exceptions import EngineDeadError

        start = time.perf_counter()
        try:
            output = await self._draw(prompt, sampling)
            while output.finish_reason == "abort":  # by an update
                output = await self._draw(prompt, sampling)
        except EngineDeadError:
            raise
        except Exception as error:  # of this prompt alone: it is too long, for one
            return RequestFailedError(f"{type(error).__name__}: {error}")
        return generation(output, time.perf_counter() - start)

    async def _draw(self, prompt: Prompt, sampling: Sampling) -> "CompletionOutput":
        results = self._engine.generate(
            {"prompt_token_ids": list(prompt.token_ids)},
            sampling_parameters(sampling, prompt.seed),
            request_id=str(next(self._request_numbers)),
            lora_request=self._adapters,
        )
        *_, result = [result async for result in results]
        return result.outputs[0]


def sampling_parameters(sampling: Sampling, seed: int | None) -> "SamplingParams":
    """vLLM's parameters of one request."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        seed=seed,
        logprobs=0,  # of the drawn tokens alone
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def generation(output: "CompletionOutput", engine_s: float) -> Generation:
    """A response as the rollouts take it, of what vLLM gives after so many seconds."""
    logp = [
        step[token].logprob for token, step in zip(output.token_ids, output.logprobs, strict=True)
    ]
    # vLLM records them with the tokens: an update may have come since this was asked for.
    names = {UNNAMED: STARTING_WEIGHTS.version}
    versions = tuple(
        (names.get(part.version, part.version), part.end - part.start)
        for part in output.weight_versions
    )
    return Generation(
        token_ids=np.asarray(output.token_ids, np.int32),
        logp=np.asarray(logp, np.float32),
        version=versions[-1][0],
        finish_reason=output.finish_reason,
        engine_s=engine_s,
        versions=versions if len(versions) > 1 else (),
    )
