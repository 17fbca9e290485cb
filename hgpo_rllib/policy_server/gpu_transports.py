"""Weight transports ``nccl`` and ``ipc``: vLLM's transfers between GPUs. Not yet tested on GPUs.

vLLM's weight transfer has a trainer side (learner), which calls the engine side (replica).
A replica requests a transfer when a request needs newer weights. A thread of the learner runs the
trainer side, and its calls go through Ray queues. Replicas therefore load independently of each
other, also after a restart.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
import torch
from ray.exceptions import RayActorError
from ray.util.queue import Queue
from torch import Tensor
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerInitInfo, WeightSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.utils.network_utils import get_open_port

from hgpo_rllib.policy_server.types import PublishedWeights

logger = logging.getLogger(__name__)
DEVICE = "cuda"


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
    """Number of the version, counted by the learner."""
    transfers: Queue
    """Queue of `Transfer` requests, which the learner serves one after the other."""


def new_queue() -> Queue:
    """Return a queue that ends with this process."""
    return Queue(actor_options={"num_cpus": 0})


class GPUTransport:
    """Keeps the latest version on the GPU, and sends it to each engine that asks for it.

    One version is enough, because these transports need `rollout.schedule=synchronous`: all
    requests of an iteration end before the next update.
    """

    def __init__(self, backend: str):
        """`backend`: vLLM's name of the transfer."""
        self._backend = backend
        self._number = 0
        self._tensors: dict[str, Tensor] = {}
        self._transfers: Queue | None = None

    def publish(self, weights: PublishedWeights) -> WeightsOnLearner:
        """Copy the weights to the GPU, in place of the last version; see `WeightTransport`."""
        if self._transfers is None:
            self._transfers = new_queue()
            name = f"weights by {self._backend}"
            threading.Thread(
                target=self._serve, args=[self._transfers], name=name, daemon=True
            ).start()
        dtype = getattr(torch, weights.dtype)
        self._number += 1  # from now on the last version is refused
        self._tensors = {}  # first free its memory
        self._tensors = {
            name: torch.from_numpy(array).view(dtype).to(DEVICE, copy=True)
            for name, array in weights.tensors.items()
        }
        return WeightsOnLearner(weights.dtype, {}, number=self._number, transfers=self._transfers)

    async def fetch(self, handle: WeightsOnLearner) -> PublishedWeights:
        """See `WeightTransport`. The engine gets the weights later, when it loads them."""
        return handle

    def _serve(self, transfers: Queue) -> None:
        while True:
            transfer: Transfer = transfers.get()
            error = None
            try:
                if transfer.number != self._number:
                    raise RuntimeError(f"version {transfer.number} was replaced by {self._number}")
                self._send(transfer)
            except Exception as failure:  # the replica ends and is started again
                logger.exception("weights were not sent (%s)", self._backend)
                error = str(failure)
            with suppress(RayActorError):  # the replica has ended
                transfer.calls.put(error)

    def _send(self, transfer: Transfer) -> None:
        init_info: TrainerInitInfo = IPCTrainerInitInfo(rank=0)
        if self._backend == "nccl":
            address = ray.util.get_node_ip_address()
            size = 1 + transfer.workers
            init_info = NCCLTrainerInitInfo(address, get_open_port(), size, rank=0)
        client, source = _EngineCalls(transfer), _Source(self._tensors)
        trainer = WeightTransferTrainerFactory.trainer_init(init_info, client=client, source=source)
        try:
            trainer.send_weights()
        finally:
            trainer.shutdown()


class _EngineCalls(HTTPVLLMWeightSyncClient):
    """vLLM's client, with the queues of a transfer in place of HTTP."""

    def __init__(self, transfer: Transfer):
        self._transfer = transfer

    def _post(self, path: str, json: dict[str, Any] | None = None) -> None:
        self._transfer.calls.put((path, json or {}))
        if error := self._transfer.replies.get():
            raise RuntimeError(error)


class _Source(WeightSource):
    def __init__(self, tensors: dict[str, Tensor]):
        self._tensors = tensors

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(n, t.dtype, tuple(t.shape)) for n, t in self._tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self._tensors.items())


nccl, ipc = GPUTransport("nccl"), GPUTransport("ipc")
