"""The Ray Serve deployment: each replica runs one engine, on CPU or GPU as configured."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil
import ray
from ray import serve
from ray.actor import ActorHandle
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from hgpo_rllib.config import AgentSettings, ModelSettings, PolicyServerSettings
from hgpo_rllib.placement import replica_resources
from hgpo_rllib.policy_server.client import MAX_BATCH
from hgpo_rllib.policy_server.engine import engine_module, transport_module
from hgpo_rllib.policy_server.engine_watch import engine_failure
from hgpo_rllib.policy_server.loopback import keep_grpc_on_loopback
from hgpo_rllib.policy_server.owner_liveness import delete_with_owner
from hgpo_rllib.policy_server.parent_death import die_with_parent
from hgpo_rllib.policy_server.types import (
    EngineDiedError,
    Generation,
    Prompt,
    RequestFailedError,
    Sampling,
    WeightTag,
)
from hgpo_rllib.policy_server.versioned_engine import VersionedEngine
from hgpo_rllib.settings.policy_server import ENGINES, WEIGHT_TRANSPORTS

MAX_ONGOING_REQUESTS = 4096  # per replica; the engine queues requests beyond max_num_seqs
SESSION_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
EXIT_DELAY_S = 0.5  # lets the error reach the callers before the process exits


class PolicyReplica:
    """Run an engine and monitor it.

    A replica exits when its engine has exited, hangs or failed in a weight update. Serve detects
    the exit at once and starts a new replica. After a failed health check Serve would retry twice
    first, and keep sending requests meanwhile.
    """

    def __init__(
        self,
        engine: str,
        transport: str,
        model: ModelSettings,
        agent: AgentSettings,
        server: PolicyServerSettings,
        seed: int,
        owner: ActorHandle,
    ):
        """Start the engine.

        Args:
            engine: module name of an `EngineModule`.
            transport: module name of a `WeightTransport`.
            model: model settings; the path is absolute or a name on the hub.
            agent: agent settings, for the limits of prompts and responses.
            server: policy server settings.
            seed: seed of the run, from which each replica derives its own.
            owner: the `OwnerLiveness` of the process that started the policy server.
        """
        # Ray's workers check that their raylet is alive, but the check accepts a zombie. A raylet
        # that has exited is a zombie until the driver, its parent, reaps it.
        die_with_parent()
        keep_grpc_on_loopback()
        check_model_is_here(str(model.model_path))
        context = serve.get_replica_context()
        seed = replica_seed(seed, context.rank.rank)
        self._engine = engine_module(engine).start(model, agent, server, seed)
        self._versioned = VersionedEngine(
            self._engine, transport_module(transport), server.update_mode
        )
        self._failure = asyncio.create_task(self._watch_engine())
        self._owner = asyncio.create_task(delete_with_owner(owner, context.app_name))

    async def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, weights: WeightTag
    ) -> list[Generation | RequestFailedError]:
        """See `VersionedEngine.generate`."""
        answering = asyncio.create_task(self._versioned.generate(prompts, sampling, weights))
        try:
            await asyncio.wait((answering, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise EngineDiedError(self._failure.result())
            return answering.result()
        except EngineDiedError:
            self._end()
            raise
        finally:
            answering.cancel()

    async def sleep(self) -> None:
        """See `VersionedEngine.sleep`."""
        await self._versioned.sleep()

    async def check_health(self) -> None:
        """Raise `EngineDiedError` if the engine has failed; called by Serve."""
        if self._failure.done():
            raise EngineDiedError(self._failure.result())

    async def _watch_engine(self) -> str:
        why = await engine_failure(self._engine)
        self._end()
        return why

    def _end(self) -> None:
        """Exit after `EXIT_DELAY_S`, when callers have received the error."""
        asyncio.get_running_loop().call_later(EXIT_DELAY_S, end_process)

    def __del__(self) -> None:
        """Stop the engine, which is a separate process; called by Serve when it stops a replica."""
        if hasattr(self, "_failure"):
            self._failure.cancel()
        if hasattr(self, "_engine"):
            self._engine.shutdown()


def end_process() -> NoReturn:
    """Kill all descendants of this process, including suspended ones, and exit with code 1."""
    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    os._exit(1)


def check_model_is_here(model: str) -> None:
    """Raise FileNotFoundError if `model` is an absolute path that this node does not have."""
    if Path(model).is_absolute() and not Path(model).is_dir():
        raise FileNotFoundError(
            f"model.model_path: {model} is not on node {ray.util.get_node_ip_address()}, where a "
            "replica starts: keep models in a folder that all nodes share, or name one of a hub"
        )


def replica_seed(seed: int, replica: int) -> int:
    """Return the engine's seed for a replica rank, so that replicas sample independently."""
    return int(np.random.SeedSequence((seed, replica)).generate_state(1)[0])


def replica_options(server: PolicyServerSettings) -> dict[str, Any]:
    """Return Serve's deployment options: number of replicas, their resources, request router."""
    resources = replica_resources(server)
    variables = engine_module(ENGINES[server.engine]).environment(server)
    options: dict[str, Any] = {
        "num_replicas": server.num_replicas,
        "ray_actor_options": {
            "num_cpus": resources.pop("CPU", 0),
            "num_gpus": resources.pop("GPU", 0),
            "resources": resources,
            "runtime_env": {"env_vars": variables},
        },
    }
    if server.max_replicas is not None:
        options["num_replicas"] = "auto"
        options["autoscaling_config"] = {
            "min_replicas": server.num_replicas,
            "max_replicas": server.max_replicas,
            "target_ongoing_requests": max(1, server.max_num_seqs // MAX_BATCH),
        }
    if max(server.num_replicas, server.max_replicas or 0) > 1:
        options["request_router_config"] = RequestRouterConfig(request_router_class=SESSION_ROUTER)
    return options


def start_policy_server(
    name: str,
    model: ModelSettings,
    agent: AgentSettings,
    server: PolicyServerSettings,
    seed: int,
    owner: ActorHandle,
) -> DeploymentHandle:
    """Deploy the policy as the application `name` and wait until it is ready.

    With several replicas, requests with the same ``handle.options(session_id=…)`` go to the same
    replica while it runs.

    `serve.delete(name)` deletes the application. It is also deleted when the process that created
    `owner` exits.

    Args:
        name: name of the application.
        model: model settings.
        agent: agent settings, for the limits of prompts and responses.
        server: policy server settings.
        seed: seed of the run.
        owner: the `OwnerLiveness` of this process.

    Raises:
        RuntimeError: the engines did not start after Serve's three attempts.
    """
    deployment = serve.deployment(
        PolicyReplica,
        name="policy",
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        health_check_period_s=2,  # time to detect a process that has exited
        graceful_shutdown_wait_loop_s=0.1,  # default: 2 seconds before it stops without requests
        graceful_shutdown_timeout_s=5,
        logging_config={"enable_access_log": False},
        **replica_options(server),
    )
    path = Path(str(model.model_path))
    if path.is_dir():  # else a name on the hub; replicas may have another working directory
        model = model.model_copy(update={"model_path": str(path.absolute())})
    modules = ENGINES[server.engine], WEIGHT_TRANSPORTS[server.weight_transport]
    bound = deployment.bind(*modules, model, agent, server, seed, owner)
    return serve.run(bound, name=name, route_prefix=None)
