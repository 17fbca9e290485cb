"""Time how new weights get from the learner into the object stores of several nodes."""

import gc
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import psutil
import ray
import torch
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hgpo_rllib.bench.measure import Row
from hgpo_rllib.policy_server import object_store
from hgpo_rllib.policy_server.publisher import WeightPublisher
from hgpo_rllib.policy_server.types import WeightTag
from hgpo_rllib.run.cluster import node_stays_on_loopback, protect_token
from hgpo_rllib.run.inputs import LOOPBACK

GB = 10**9
TENSOR = GB // 4  # bytes of a tensor of the published weights
SPARE = 1.15  # size of a store, as a multiple of the weights
USABLE = 0.4  # of the available memory, which the stores together may take


def bench_publishing(sizes: Sequence[float], stores: Sequence[int], repeats: int) -> list[Row]:
    """Publish weights as the learner does, and fetch them on every node as a replica does.

    The nodes are Ray nodes on this machine, each with an object store, and copy over its loopback
    device. The learner is on the first one. All tensors of the learner are one tensor, so only the
    stores take memory.

    Returns:
        One row per size in GB and number of stores, with medians over `repeats` versions: seconds
        until the weights are in the learner's store (``published_s``) and until they are in all
        stores (``everywhere_s``), and the rate of copying into the stores. Sizes that do not fit
        the available memory are left out.
    """
    rows: list[Row] = []
    for count in stores:
        room = USABLE * psutil.virtual_memory().available / count
        fitting = [size for size in sizes if store_bytes(size) <= room]
        if fitting:
            with _nodes(count, store_bytes(max(fitting))) as nodes:
                rows += [_measure(size, nodes, repeats) for size in fitting]
    return rows


def store_bytes(size: float) -> int:
    """Return the size of a store that holds weights of `size` GB."""
    return int(SPARE * size * GB) + 10**8


def _measure(size: float, nodes: Sequence[str], repeats: int) -> Row:
    tensors = max(1, round(size * GB / TENSOR))
    values = np.random.default_rng(0).random(int(size * GB / tensors) // 4, np.float32)
    state = {f"layer{number}": torch.from_numpy(values) for number in range(tensors)}
    publisher = WeightPublisher(torch.float32, object_store)
    replicas = [
        ray.remote(num_cpus=0)(Fetcher)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        .remote()
        for node in nodes
    ]
    ray.get([replica.__ray_ready__.remote() for replica in replicas])
    published, everywhere = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        tag = publisher.publish(state)
        published.append(time.perf_counter() - start)
        fetched = ray.get([replica.fetch.remote(tag) for replica in replicas])
        everywhere.append(time.perf_counter() - start)
        assert set(fetched) == {tensors * values.nbytes}
        del tag  # frees the version in all stores
        gc.collect()
        time.sleep(1)
    for replica in replicas:
        ray.kill(replica)
    seconds = statistics.median(everywhere)
    return {
        "stores": len(nodes),
        "gb": float(size),
        "published_s": statistics.median(published),
        "everywhere_s": seconds,
        "gb_per_s": size * len(nodes) / seconds,
    }


class Fetcher:
    """Fetches weights on its node, as a replica does."""

    async def fetch(self, tag: WeightTag) -> int:
        """Return the number of bytes of the weights, which are then in this node's store."""
        weights = await object_store.fetch(tag.handle)
        return sum(array.nbytes for array in weights.tensors.values())


@contextmanager
def _nodes(count: int, store: int) -> Iterator[list[str]]:
    """Start Ray nodes on the loopback address, connect to the first, and yield their ids."""
    options = {"num_cpus": 1, "object_store_memory": store, "node_ip_address": LOOPBACK}
    protect_token()
    with (
        tempfile.TemporaryDirectory(prefix="hgpo-") as folder,
        patch.dict(os.environ, {"RAY_TMPDIR": folder}),
        node_stays_on_loopback(),
    ):
        cluster = Cluster()
        try:
            for _ in range(count):
                cluster.add_node(include_dashboard=False, **options)
            ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
            yield [node["NodeID"] for node in ray.nodes()]
        finally:
            ray.shutdown()
            cluster.shutdown()
