"""Serve's request router for rollouts: each replica gets the same number of groups."""

from ray.serve._private.common import ReplicaID
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter


class GroupRouter(ConsistentHashRouter):
    """Send the requests of a session, a group, to the same replica.

    Hashes spread a few groups unevenly, and a rollout takes as long as the replica with the most.
    This router uses the number at the end of the group's name instead, as numbers are consecutive.
    """

    def _lookup_ranked_replicas(self, routing_key: str) -> list[ReplicaID]:
        """Return the replica of a session, then those to try if it does not accept the request."""
        number = routing_key.rpartition("/")[2]
        if not number.isdecimal():  # a request without a session
            return super()._lookup_ranked_replicas(routing_key)
        replicas = sorted(self._replica_set_snapshot, key=lambda replica: replica.unique_id)
        if not replicas:
            return []
        first = int(number) % len(replicas)
        return (replicas[first:] + replicas[:first])[: 1 + self._num_fallback_replicas]
