"""Weight transport through Ray's object store: one object per version, freed by Ray.

Ray copies an object to another node once, for all replicas of that node.
"""

import ray

from hgpo_rllib.policy_server.types import PublishedWeights


def publish(weights: PublishedWeights) -> ray.ObjectRef:
    """See `WeightTransport`. Ray frees the object with its last reference or its owner."""
    return ray.put(weights)


async def fetch(handle: ray.ObjectRef) -> PublishedWeights:
    """See `WeightTransport`. The arrays are views of the store's memory."""
    return await handle
