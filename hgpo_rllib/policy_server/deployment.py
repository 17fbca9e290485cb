"""The Ray Serve deployment: one engine a replica, CPU or GPU by settings only."""

import asyncio
import os
import tempfile
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

MAX_ONGOING_REQUESTS = 4096  # per replica; an engine queues what exceeds max_num_seqs itself
SESSION_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
SOCKET_NAME = 1 + 36  # characters that vLLM adds to the folder: a slash and a UUID
SOCKET_PATH = 107  # characters that Linux allows
EXIT_DELAY_S = 0.5  # in which the error that says why a replica ends reaches its callers


class PolicyReplica:
    """An engine, watched.

    A replica whose engine has ended, hangs or holds half an update ends its own process. Serve
    notices that at once and starts another. A failed health check it repeats twice before it does,
    and goes on sending requests until then.
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
            engine: an `EngineModule`'s name.
            transport: a `WeightTransport`'s name.
            model: its path is absolute, or a name on a hub.
            agent: for the limits of prompts and responses.
            server: of the policy server.
            seed: of the run; each replica makes one of its own of it.
            owner: the `OwnerLiveness` of the process that started the policy server.
        """
        # Ray's workers look whether their raylet lives, but take a zombie for alive; it is one
        # until the driver, its parent, has noticed.
        die_with_parent()
        keep_grpc_on_loopback()
        keep_temporary_files_in_session()
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

    async def check_health(self) -> None:
        """Called by Serve: this event loop answers, and the engine is fine."""
        if self._failure.done():
            raise EngineDiedError(self._failure.result())

    async def _watch_engine(self) -> str:
        why = await engine_failure(self._engine)
        self._end()
        return why

    def _end(self) -> None:
        """End this process when its callers know why."""
        asyncio.get_running_loop().call_later(EXIT_DELAY_S, end_process)

    def __del__(self) -> None:
        """Called by Serve when it stops the replica: the engine is a process of its own."""
        if hasattr(self, "_failure"):
            self._failure.cancel()
        if hasattr(self, "_engine"):
            self._engine.shutdown()


def end_process() -> NoReturn:
    """End this process and all below it, suspended ones too, without asking any of them."""
    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    os._exit(1)


def keep_temporary_files_in_session() -> None:
    """Put temporary files of this process and its engine into the folder of Ray's session.

    An engine that is killed does not remove its sockets. The folder is removed with the session.
    """
    folder = ray._private.worker._global_node.get_session_dir_path()
    if len(folder) + SOCKET_NAME <= SOCKET_PATH:
        os.environ["TMPDIR"] = tempfile.tempdir = folder


def check_model_is_here(model: str) -> None:
    """Raise FileNotFoundError for a directory that this node does not have."""
    if Path(model).is_absolute() and not Path(model).is_dir():
        raise FileNotFoundError(
            f"model.model_path: {model} is not on node {ray.util.get_node_ip_address()}, where a "
            "replica starts: keep models in a folder that all nodes share, or name one of a hub"
        )


def replica_seed(seed: int, replica: int) -> int:
    """The engine's seed in the replica of that rank: replicas must not draw the same."""
    return int(np.random.SeedSequence((seed, replica)).generate_state(1)[0])


def replica_options(server: PolicyServerSettings) -> dict[str, Any]:
    """Serve's options of a deployment: how many replicas, what each reserves, who gets a call."""
    variables = engine_module(ENGINES[server.engine]).environment(server)
    options: dict[str, Any] = {
        "num_replicas": server.num_replicas,
        "ray_actor_options": {
            "num_cpus": server.replica_cpus,
            "num_gpus": server.replica_gpus,
            "resources": server.replica_resources,
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
    """Deploy the policy under the application name `name` and wait until it answers.

    With several replicas, requests that name the same session, ``handle.options(session_id=…)``, go
    to the same one as long as it runs.

    It is deleted by `serve.delete(name)`, and with the owner of the `OwnerLiveness`.

    Raises:
        RuntimeError: the engines did not start (Serve tries three times).
    """
    deployment = serve.deployment(
        PolicyReplica,
        name="policy",
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        health_check_period_s=2,  # how soon a process that has ended is noticed
        graceful_shutdown_timeout_s=5,
        logging_config={"enable_access_log": False},
        **replica_options(server),
    )
    path = Path(str(model.model_path))
    if path.is_dir():  # replicas may run in another folder; what is none is a name on a hub
        model = model.model_copy(update={"model_path": str(path.absolute())})
    modules = ENGINES[server.engine], WEIGHT_TRANSPORTS[server.weight_transport]
    bound = deployment.bind(*modules, model, agent, server, seed, owner)
    return serve.run(bound, name=name, route_prefix=None)
