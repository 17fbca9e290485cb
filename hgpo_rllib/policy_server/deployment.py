"""A replica of the policy server: it runs one engine, on CPU or GPU as configured.

Serve would keep the policy server running after the process that started it, and a command that is
killed on a long-lived cluster (`ray job stop` kills after three seconds) would leave its engines on
their GPUs. Replicas therefore delete it when that process exits for any reason.
"""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np
import psutil
import ray
from ray import serve
from ray._common import tls_utils
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError
from ray.serve._private import replica
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hgpo_rllib.policy_server.engine import find_engine, find_transport
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
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.model import ModelSettings
from hgpo_rllib.settings.policy_server import PolicyServerSettings

LOOPBACK = "127.0.0.1"
EXIT_DELAY_S = 0.5  # lets the error reach the callers before the process exits


class PolicyReplica(VersionedEngine):
    """Run an engine in a Serve replica.

    A replica exits when its engine has exited or failed in a weight update. Serve detects the exit
    within two seconds and starts a new replica. It also replaces a replica whose engine hangs:
    after three health checks without a reply.
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

        `engine` and `transport` are import paths, values of `ENGINES` and `WEIGHT_TRANSPORTS`:
        names that the user's code added exist only in the main process. `seed` is that of the run,
        from which each replica derives its own. `owner` is the `OwnerLiveness` of the process that
        started the policy server.
        """
        # Ray's workers check that their raylet is alive, but the check accepts a zombie. A raylet
        # that has exited is a zombie until the driver, its parent, reaps it.
        die_with_parent()
        keep_grpc_on_loopback()
        check_model_is_here(str(model.model_path))
        context = serve.get_replica_context()
        seed = replica_seed(seed, context.rank.rank)
        started = find_engine(engine).start(model, agent, server, seed)
        super().__init__(started, find_transport(transport), server.update_mode)
        self._owner_watch = asyncio.create_task(delete_with_owner(owner, context.app_name))

    async def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, weights: WeightTag
    ) -> list[Generation | RequestFailedError]:
        """See `VersionedEngine.generate`."""
        try:
            return await super().generate(prompts, sampling, weights)
        except EngineDiedError:
            self._exit()
            raise

    async def check_health(self) -> None:
        """Wait for a reply of the engine; called by Serve."""
        try:
            await self._engine.check_health()
        except EngineDiedError:
            self._exit()
            raise

    def _exit(self) -> None:
        """Exit after `EXIT_DELAY_S`, when callers have received the error."""
        asyncio.get_running_loop().call_later(EXIT_DELAY_S, end_process)

    def __del__(self) -> None:
        """Stop the engine, which is a separate process; called by Serve when it stops a replica."""
        if hasattr(self, "_engine"):
            self._engine.shutdown()


def end_process() -> NoReturn:
    """Kill all descendants of this process, including suspended ones, and exit with code 1."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.kill()
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


def keep_grpc_on_loopback() -> None:
    """Bind this replica's gRPC port to the loopback address if the node uses that address.

    Serve opens the port on all interfaces after the constructor of a deployment, and has no setting
    for the address. Call this in the constructor to replace the function that opens the port.
    Clients connect to the node's address.
    """
    if ray.util.get_node_ip_address() == LOOPBACK:
        replica.add_port_to_grpc_server = lambda server, address: tls_utils.add_port_to_grpc_server(
            server, f"{LOOPBACK}:0"
        )


class OwnerLiveness:
    """An actor that lives as long as its owner, the process that created it.

    Ray stops an actor when its owner exits. Ray restarts the actor if only its own process dies.
    """

    async def wait(self) -> None:
        """Wait forever."""
        await asyncio.Event().wait()


def start_owner_liveness() -> ActorHandle:
    """Start an `OwnerLiveness` of this process on its node, so that only this node can end it."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(OwnerLiveness).remote()


async def delete_with_owner(owner: ActorHandle, app: str) -> None:
    """Delete the application `app` when the owner of an `OwnerLiveness` has exited."""
    while True:
        try:
            await owner.wait.remote()
        except ActorUnavailableError:  # being restarted, or a network error
            await asyncio.sleep(1)
        except RayActorError:
            break
    await asyncio.to_thread(serve.delete, app, _blocking=False)
