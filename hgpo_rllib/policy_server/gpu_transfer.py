"""Weights that stay on the learner's GPU until an engine asks for them.

vLLM's transfers between GPUs have one half in the learner, which calls the other half, in the
engine. Here a replica begins a transfer when a request needs the weights, and Ray's queues carry
the calls. So replicas load independently of each other, as from the object store, and a restarted
one loads the current weights by itself.
"""

from dataclasses import dataclass
from typing import NamedTuple

from ray.util.queue import Queue

from hgpo_rllib.policy_server.types import PublishedWeights


class Transfer(NamedTuple):
    """An engine's request for weights."""

    number: int
    """See `WeightsOnLearner`."""
    workers: int
    """Number of processes of the engine."""
    calls: Queue
    """The learner's calls: method and arguments. At the end None, or the error of the learner."""
    replies: Queue
    """For each call None, or the error of the engine."""


@dataclass(frozen=True, kw_only=True)
class WeightsOnLearner(PublishedWeights):
    """A version on the learner's GPU; ``tensors`` is empty."""

    number: int
    """Counted by the learner."""
    transfers: Queue
    """Of `Transfer`, which the learner serves one after the other."""


def new_queue() -> Queue:
    """Return a queue that ends with this process."""
    return Queue(actor_options={"num_cpus": 0})
