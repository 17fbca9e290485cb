"""The policy server ends with the process that started it, however that one ends.

Serve would keep it: a killed command in a cluster that goes on (`ray job stop` kills after three
seconds) would leave its engines there, on their GPUs.
"""

import asyncio

import ray
from ray import serve
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


class OwnerLiveness:
    """An actor that lives exactly as long as the process that made it, its owner.

    Ray ends an actor with its owner. When only the actor's own process dies, Ray starts it again.
    """

    async def wait(self) -> None:
        """Never returns."""
        await asyncio.Event().wait()


def start_owner_liveness() -> ActorHandle:
    """An `OwnerLiveness` of this process, on its own node: it must not end with another one."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(OwnerLiveness).remote()


async def owner_ended(owner: ActorHandle) -> None:
    """Wait until the owner of that `OwnerLiveness` has ended."""
    while True:
        try:
            await owner.wait.remote()
        except ActorUnavailableError:  # being started again, or the network
            await asyncio.sleep(1)
        except RayActorError:
            return


async def delete_with_owner(owner: ActorHandle, app: str) -> None:
    """Delete the application when its owner ends."""
    await owner_ended(owner)
    await asyncio.to_thread(serve.delete, app, _blocking=False)
