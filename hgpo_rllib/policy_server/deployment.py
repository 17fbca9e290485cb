"""The Ray Serve deployment: one vLLM engine a replica, CPU or GPU by settings only."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray import serve
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError
from ray.serve.handle import DeploymentHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hgpo_rllib.config import AgentSettings, ModelSettings, PolicyServerSettings
from hgpo_rllib.policy_server.adapters import adapter_folder
from hgpo_rllib.policy_server.engine import (
    engine_arguments,
    replica_options,
    replica_seed,
)
from hgpo_rllib.policy_server.settings import UpdateMode
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

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.outputs import CompletionOutput

MAX_ONGOING_REQUESTS = 4096  # per replica; vLLM queues what exceeds max_num_seqs itself
ADAPTERS = "policy"  # vLLM's name of the LoRA adapters
Load = Callable[[], Awaitable[None]]
UNNAMED = "default"  # vLLM's version of the weights that an engine starts with


class Lifeline:
    """An actor that Ray ends with the process that made it, however that one ends."""

    async def hold(self) -> None:
        """Never returns."""
        await asyncio.Event().wait()


def start_lifeline() -> ActorHandle:
    """A `Lifeline` of this process, on its own node: it must not end with another one."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(Lifeline).remote()


class PolicyReplica:
    """Generates responses with vLLM under the weights that a request names.

    A request carries the tag of the weights it wants. A replica that holds older ones, or another
    publisher's, loads them first: updates need no broadcast, and a replica that was restarted
    catches up by itself. A request for older weights is answered under those that it holds.
    """

    def __init__(
        self, engine_arguments: dict[str, Any], update_mode: UpdateMode, lifeline: ActorHandle
    ):
        """Start the engine.

        Args:
            engine_arguments: vLLM's `AsyncEngineArgs`; each replica makes a seed of its own of the
                one in there.
            update_mode: see `PolicyServerSettings`.
            lifeline: a `Lifeline` of the process that started the policy server.
        """
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        check_model_is_here(engine_arguments["model"])
        context = serve.get_replica_context()
        seed = replica_seed(engine_arguments["seed"], context.rank.rank)
        arguments = AsyncEngineArgs(**engine_arguments | {"seed": seed})
        self._engine = AsyncLLM.from_engine_args(arguments)
        self._update_mode = update_mode
        self._held = STARTING_WEIGHTS
        self._adapters: LoRARequest | None = None
        self._updating: asyncio.Task[None] | None = None
        self._broken: Exception | None = None
        self._request_numbers = itertools.count()
        self._watch = asyncio.create_task(delete_with(lifeline, context.app_name))

    async def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, weights: WeightTag
    ) -> list[Generation | RequestFailedError]:
        """One response to each prompt, drawn under `weights` or newer ones; an error instead of a
        response where the engine refuses a prompt.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            await self._load(weights)
            return await asyncio.gather(*(self._answer(prompt, sampling) for prompt in prompts))
        except EngineDeadError as error:
            raise EngineDiedError(str(error)) from error

    async def check_health(self) -> None:
        """Called by Serve: a replica is replaced when its engine died, or holds half an update."""
        if self._broken:
            raise self._broken
        await self._engine.check_health()

    def __del__(self) -> None:
        """Called by Serve when it stops the replica: the engine is a process of its own."""
        if hasattr(self, "_engine"):
            self._engine.shutdown()

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
                await self._engine.pause_generation(mode=self._update_mode, clear_cache=True)
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


async def delete_with(lifeline: ActorHandle, app: str) -> None:
    """Delete the application when the lifeline ends.

    Serve would keep it: a killed command in a cluster that goes on (`ray job stop` kills after
    three seconds) would leave its engines there, on their GPUs.
    """
    while True:
        try:
            await lifeline.hold.remote()
        except ActorUnavailableError:  # the network, perhaps
            await asyncio.sleep(10)
        except RayActorError:
            break
    await asyncio.to_thread(serve.delete, app, _blocking=False)


def check_model_is_here(model: str) -> None:
    """Raise FileNotFoundError for a directory that this node does not have."""
    if Path(model).is_absolute() and not Path(model).is_dir():
        raise FileNotFoundError(
            f"model.model_path: {model} is not on node {ray.util.get_node_ip_address()}, where a "
            "replica starts: keep models in a folder that all nodes share, or name one of a hub"
        )


def start_policy_server(
    name: str,
    model: ModelSettings,
    agent: AgentSettings,
    server: PolicyServerSettings,
    seed: int,
    lifeline: ActorHandle,
) -> DeploymentHandle:
    """Deploy the policy under the application name `name` and wait until it answers.

    With several replicas, requests that name the same session, ``handle.options(session_id=…)``, go
    to the same one as long as it runs.

    It is deleted by `serve.delete(name)`, and when the `Lifeline` ends.

    Raises:
        RuntimeError: the engines did not start (Serve tries three times).
    """
    deployment = serve.deployment(
        PolicyReplica,
        name="policy",
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        health_check_timeout_s=60,
        graceful_shutdown_timeout_s=5,
        logging_config={"enable_access_log": False},
        **replica_options(server),
    )
    arguments = engine_arguments(model, agent, server, seed)
    bound = deployment.bind(arguments, server.update_mode, lifeline)
    return serve.run(bound, name=name, route_prefix=None)
