"""The Ray Serve deployment: one vLLM engine a replica, CPU or GPU by settings only."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError
from ray.serve.handle import DeploymentHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hgpo_rllib.config import AgentSettings, ModelSettings, PolicyServerSettings
from hgpo_rllib.policy_server.engine import engine_arguments, replica_environment
from hgpo_rllib.policy_server.transfer import remove_stale_weights, weights_here
from hgpo_rllib.policy_server.types import (
    STARTING_WEIGHTS,
    EngineDiedError,
    Generation,
    Prompt,
    RequestFailedError,
    Sampling,
    WeightTag,
)

MAX_ONGOING_REQUESTS = 4096  # per replica; vLLM queues what exceeds max_num_seqs itself


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

    A request carries the tag of the weights it wants. A replica that holds others loads them
    first: updates need no broadcast, and a replica that was restarted catches up by itself.
    """

    def __init__(self, engine_arguments: dict[str, Any], lifeline: ActorHandle):
        """Start the engine.

        Args:
            engine_arguments: vLLM's `AsyncEngineArgs`.
            lifeline: a `Lifeline` of the process that started the policy server.
        """
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        remove_stale_weights()  # copies of a replica that was killed while it loaded one
        check_model_is_here(engine_arguments["model"])
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments))
        self._weights = STARTING_WEIGHTS
        self._loading = asyncio.Lock()
        self._request_numbers = itertools.count()
        app = serve.get_replica_context().app_name
        self._watch = asyncio.create_task(delete_with(lifeline, app))

    async def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, weights: WeightTag
    ) -> list[Generation | RequestFailedError]:
        """One response to each prompt, all drawn under `weights`; an error instead of a response
        where the engine refuses a prompt.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            if weights.version != self._weights.version:
                await self._load(weights)
            return await asyncio.gather(*(self._answer(prompt, sampling) for prompt in prompts))
        except EngineDeadError as error:
            raise EngineDiedError(str(error)) from error

    async def check_health(self) -> None:
        """Called by Serve: a replica whose engine died is replaced."""
        await self._engine.check_health()

    def __del__(self) -> None:
        """Called by Serve when it stops the replica: the engine is a process of its own."""
        if hasattr(self, "_engine"):
            self._engine.shutdown()

    async def _load(self, weights: WeightTag) -> None:
        async with self._loading:
            if weights.version == self._weights.version:
                return  # another request loaded them while this one waited
            if weights.path is None:
                raise RuntimeError("the starting weights are gone: the server was updated since")
            async with weights_here(weights) as path:
                await self._engine.pause_generation(mode="wait", clear_cache=True)
                try:
                    await self._engine.collective_rpc("load_policy_weights", args=(path,))
                    await self._engine.update_weight_version(weights.version)
                    self._weights = weights
                finally:
                    await self._engine.resume_generation()

    async def _answer(self, prompt: Prompt, sampling: Sampling) -> Generation | RequestFailedError:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            return await self._respond(prompt, sampling)
        except EngineDeadError:
            raise
        except Exception as error:  # of this prompt alone: it is too long, for one
            return RequestFailedError(f"{type(error).__name__}: {error}")

    async def _respond(self, prompt: Prompt, sampling: Sampling) -> Generation:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            stop_token_ids=list(sampling.stop_token_ids),
            seed=prompt.seed,
            logprobs=0,  # of the drawn tokens alone
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        version = self._weights.version
        request_id = str(next(self._request_numbers))
        results = self._engine.generate(
            {"prompt_token_ids": list(prompt.token_ids)}, parameters, request_id=request_id
        )
        *_, result = [result async for result in results]
        output = result.outputs[0]
        logp = [
            step[token].logprob
            for token, step in zip(output.token_ids, output.logprobs, strict=True)
        ]
        return Generation(
            token_ids=np.asarray(output.token_ids, np.int32),
            logp=np.asarray(logp, np.float32),
            version=version,
            finish_reason=output.finish_reason,
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

    It is deleted by `serve.delete(name)`, and when the `Lifeline` ends.

    Raises:
        RuntimeError: the engines did not start (Serve tries three times).
    """
    deployment = serve.deployment(
        PolicyReplica,
        name="policy",
        num_replicas=server.num_replicas,
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        health_check_timeout_s=60,
        graceful_shutdown_timeout_s=5,
        logging_config={"enable_access_log": False},
        ray_actor_options={
            "num_cpus": server.replica_cpus,
            "num_gpus": server.replica_gpus,
            "resources": server.replica_resources,
            "runtime_env": {"env_vars": replica_environment(server)},
        },
    )
    arguments = engine_arguments(model, agent, server, seed)
    return serve.run(deployment.bind(arguments, lifeline), name=name, route_prefix=None)
