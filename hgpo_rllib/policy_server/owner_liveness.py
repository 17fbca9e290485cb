"""Delete the policy server when the process that started it exits for any reason.

Serve would keep it running. A command that is killed on a long-lived cluster (`ray job stop` kills
after three seconds) would leave its engines on their GPUs.
"""

import asyncio

import ray
from ray import serve
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


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


async def owner_ended(owner: ActorHandle) -> None:
    """Wait until the owner of an `OwnerLiveness` has exited."""
    while True:
        try:
            await owner.wait.remote()
        except ActorUnavailableError:  # being restarted, or a network error
            await asyncio.sleep(1)
        except RayActorError:
            return


async def delete_with_owner(owner: ActorHandle, app: str) -> None:
    """Delete the application `app` when its owner exits."""
    await owner_ended(owner)
    await asyncio.to_thread(serve.delete, app, _blocking=False)
