"""vLLM as an `Engine`, and the extension of vLLM's workers that loads new weights.

Apart from benchmarks, `gpu_transports` and `vllm_serve`, only this module imports vLLM. Replicas
import it, and so do vLLM's workers, because `WorkerExtension` is in it.
"""

import itertools
import multiprocessing
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from ray.util.queue import Empty, Queue
from vllm import AsyncEngineArgs, SamplingParams
from vllm.config import set_current_vllm_config
from vllm.lora.request import LoRARequest
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.outputs import CompletionOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from hgpo_rllib.models import write_tokenizer
from hgpo_rllib.policy_server.engine import Engine, Load
from hgpo_rllib.policy_server.gpu_transports import Transfer, WeightsOnLearner, new_queue
from hgpo_rllib.policy_server.parent_death import die_with_parent
from hgpo_rllib.policy_server.transfer import adapter_folder, mapped_tensors, shared_with_engine
from hgpo_rllib.policy_server.types import (
    STARTING_WEIGHTS,
    EngineDiedError,
    Generation,
    Prompt,
    PublishedWeights,
    RequestFailedError,
    Sampling,
)
from hgpo_rllib.settings.policy_server import UpdateMode

ADAPTERS = "policy"  # name of the LoRA adapters in vLLM
LEARNER_TIMEOUT_S = 600  # for a call of the learner, which first serves other replicas
VLLM_INITIAL_VERSION = "default"  # vLLM's version name of the weights that an engine starts with


@contextmanager
def _as_engine_died_error() -> Iterator[None]:
    """Raise the error of the `Engine` protocol in place of vLLM's."""
    try:
        yield
    except EngineDeadError as error:
        raise EngineDiedError("the engine died") from error


class VLLMEngine(Engine):
    """vLLM in child processes."""

    def __init__(self, arguments: dict[str, Any]):
        """Start vLLM in child processes; `arguments` are its `AsyncEngineArgs`."""
        with TemporaryDirectory(prefix="hgpo-tokenizer-") as folder:
            if not arguments["skip_tokenizer_init"]:
                write_tokenizer(arguments["model"], Path(folder))
                arguments = arguments | {"tokenizer": folder}
            self._vllm = AsyncLLM.from_engine_args(
                AsyncEngineArgs(**arguments),
                # The batch size of `vllm serve` on this device: 8,192 instead of 2,048 tokens on
                # an H100.
                usage_context=UsageContext.OPENAI_API_SERVER,
            )
        self._adapters: LoRARequest | None = None
        self._request_numbers = itertools.count()
        self._queues: tuple[Queue, Queue] | None = None

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        start = time.perf_counter()
        try:
            with _as_engine_died_error():
                output = await self._sample(prompt, sampling)
                while output.finish_reason == "abort":  # aborted by a weight update: sample again
                    output = await self._sample(prompt, sampling)
            if output.finish_reason == "error":  # such as a token that its grammar rejects
                raise RuntimeError("vLLM ended the response with an error")
        except EngineDiedError:
            raise
        except Exception as error:  # only this prompt, such as one that is too long
            raise RequestFailedError(f"{type(error).__name__}: {error}") from error
        return generation(output, time.perf_counter() - start)

    async def _sample(self, prompt: Prompt, sampling: Sampling) -> CompletionOutput:
        results = self._vllm.generate(
            {"prompt_token_ids": list(prompt.token_ids)},
            sampling_parameters(sampling, prompt),
            request_id=str(next(self._request_numbers)),
            lora_request=self._adapters,
        )
        *_, result = [result async for result in results]
        return result.outputs[0]

    @asynccontextmanager
    async def receive(self, weights: PublishedWeights) -> AsyncIterator[Load]:
        async with AsyncExitStack() as stack:
            if isinstance(weights, WeightsOnLearner):
                load = partial(self._load_from_learner, weights)
            elif weights.adapter is None:
                shared = await stack.enter_async_context(shared_with_engine(weights))
                load = partial(self._vllm.collective_rpc, "load_shared_weights", kwargs=shared)
            else:
                load = partial(self._load_adapters, stack.enter_context(adapter_folder(weights)))

            async def load_as(version: str) -> None:
                await load()
                await self._vllm.update_weight_version(version)

            yield load_as

    async def _load_adapters(self, folder: Path) -> None:
        if not await self._vllm.add_lora(LoRARequest(ADAPTERS, 1, str(folder), load_inplace=True)):
            raise RuntimeError("vLLM did not load the LoRA adapters")
        self._adapters = LoRARequest(ADAPTERS, 1, str(folder))

    async def _load_from_learner(self, weights: WeightsOnLearner) -> None:
        """Load weights with vLLM's own transfer, whose half in the learner calls this half.

        The connection is made for each load and closed after it: it would not survive a restart
        of any other replica.

        Raises:
            RuntimeError: the learner or this engine failed, or the learner does not call because
                it waits in NCCL for a replica that was lost.
        """
        self._queues = calls, replies = self._queues or (new_queue(), new_queue())
        workers = self._vllm.vllm_config.parallel_config.world_size
        await weights.transfers.put_async(Transfer(weights.number, workers, calls, replies))
        try:
            while isinstance(call := await calls.get_async(timeout=LEARNER_TIMEOUT_S), tuple):
                method, arguments = call
                try:
                    await self._vllm.collective_rpc(method, kwargs=arguments)
                except Exception as error:
                    await replies.put_async(f"the engine failed: {error}")
                    raise
                await replies.put_async(None)
        except Empty:
            raise RuntimeError(f"no call of the learner for {LEARNER_TIMEOUT_S:g} s") from None
        if call is not None:
            raise RuntimeError(f"the learner did not send its weights: {call}")
        await self._vllm.shutdown_weight_transfer_engine()

    async def pause(self, mode: UpdateMode) -> None:
        with _as_engine_died_error():
            await self._vllm.pause_generation(mode=mode, clear_cache=True)

    async def resume(self) -> None:
        with _as_engine_died_error():
            await self._vllm.resume_generation()

    async def sleep(self) -> None:
        """Free GPU memory. Level 1 keeps the weights in host memory and drops the KV cache.

        Level 2 would drop the weights as well. They are needed: a run with LoRA publishes adapters
        only, and an evaluation after a resume uses the weights that the engine started with.
        """
        with _as_engine_died_error():
            await self._vllm.sleep(level=1, mode="wait")

    async def wake_up(self) -> None:
        with _as_engine_died_error():
            await self._vllm.wake_up()

    async def check_health(self) -> None:
        with _as_engine_died_error():
            await self._vllm.get_weight_version()

    def shutdown(self) -> None:
        """Stop vLLM, which gets time to end: a killed one leaves a temporary file."""
        self._vllm.shutdown()


def sampling_parameters(sampling: Sampling, prompt: Prompt) -> SamplingParams:
    """Return vLLM's sampling parameters for one request."""
    grammar = prompt.grammar
    return SamplingParams(
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        seed=prompt.seed,
        logprobs=0,  # sampled tokens only
        structured_outputs=grammar and StructuredOutputsParams(structural_tag=grammar),
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def generation(output: CompletionOutput, engine_s: float) -> Generation:
    """Convert vLLM's output to a `Generation`; `engine_s` is its time in the engine in seconds."""
    logp = [
        step[token].logprob for token, step in zip(output.token_ids, output.logprobs, strict=True)
    ]
    # vLLM records versions per token, as an update may arrive during the request.
    names = {VLLM_INITIAL_VERSION: STARTING_WEIGHTS.version}
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


class WorkerExtension:
    """Mixin of vLLM's workers, which therefore import this module; `collective_rpc` calls it."""

    def load_shared_weights(self: Any, **shared: Any) -> None:
        """Load weights in checkpoint form in place; for `shared` see `mapped_tensors`.

        vLLM converts each layer to its own form when the layer is complete.

        On a CPU vLLM keeps a prepacked copy of the output head, and a reload does not repack a head
        that is tied to the embedding. Without repacking, the engine would use the old head and its
        log-probabilities would be wrong without an error.

        Raises:
            ValueError: parameters of the model are missing.
        """
        model = self.get_model()
        expected = {name for name, _ in model.named_parameters()}
        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(model)
            missing = expected - model.load_weights(mapped_tensors(**shared))
            if missing:
                raise ValueError(f"new weights lack {', '.join(sorted(missing))}")
            finalize_layerwise_reload(model, self.model_config)
            head = getattr(model, "lm_head", None)
            if current_platform.is_cpu() and head is not None and hasattr(head, "quant_method"):
                head.quant_method.process_weights_after_loading(head)
        torch.accelerator.synchronize()  # vLLM makes this do nothing on a CPU


class TensorParallelExecutor(MultiprocExecutor):
    """vLLM's executor of several workers, with an engine process that exits with the replica.

    The engine's process runs the executor. With one worker it runs the worker as well, and so it
    imports this module.
    """

    def _init_executor(self) -> None:
        if parent := multiprocessing.parent_process():
            die_with_parent(parent.pid)
        super()._init_executor()


# A killed replica cannot stop its engine, nor a killed engine its workers. These do not read vLLM's
# pipes while they are suspended or wait for a device. `die_with_parent` is safe here: vLLM starts
# them from threads that live as long as their process (Serve's for user code, the engine's main
# thread).
if parent := multiprocessing.parent_process():
    die_with_parent(parent.pid)
