"""The weight transport of Ray's object store: one object a version, which Ray frees by itself.

On another node Ray copies an object there first, once for all replicas of that node.
"""

import ray

from hgpo_rllib.policy_server.types import PublishedWeights


def publish(weights: PublishedWeights) -> ray.ObjectRef:
    """See `WeightTransport`: Ray frees an object with its last reference, or its owner."""
    return ray.put(weights)


async def fetch(handle: ray.ObjectRef) -> PublishedWeights:
    """See `WeightTransport`: arrays are views of the store's memory."""
    return await handle
