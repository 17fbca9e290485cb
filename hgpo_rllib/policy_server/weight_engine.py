"""vLLM's weight-transfer engine ``hgpo``: loads what a replica has taken from Ray's object store.

Runs in the processes that hold the model; they import this module for `WorkerExtension`.
"""

import multiprocessing
from dataclasses import dataclass

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform

from hgpo_rllib.policy_server.parent_death import die_with_parent
from hgpo_rllib.policy_server.transfer import mapped_tensors

BACKEND = "hgpo"


@dataclass
class SharedWeights(WeightTransferUpdateInfo):
    """Arguments of `mapped_tensors`."""

    path: str
    dtype: str
    names: list[str]
    shapes: list[list[int]]


class SharedMemoryEngine(WeightTransferEngine[WeightTransferInitInfo, SharedWeights]):
    """Loads weights in checkpoint form in place, from memory that the replica shares."""

    init_info_cls = WeightTransferInitInfo
    update_info_cls = SharedWeights

    def init_transfer_engine(self, init_info: WeightTransferInitInfo) -> None:
        """Nothing: each update says where its memory is."""

    def start_weight_update(self) -> None:
        """Take the layers back to the form of a checkpoint."""
        self._expected = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: SharedWeights) -> None:
        """Load the tensors; a layer is brought into the engine's form when it has all of its own.

        Raises:
            ValueError: the model has parameters that were not sent.
        """
        missing = self._expected - self.model.load_weights(mapped_tensors(**vars(update_info)))
        if missing:
            raise ValueError(f"new weights lack {', '.join(sorted(missing))}")

    def update_weights(self, update_info: dict) -> None:
        """See `WeightTransferEngine`, which on a CPU asks an accelerator that is not there."""
        if current_platform.is_cpu():
            self.receive_weights(self.parse_update_info(update_info))
        else:
            super().update_weights(update_info)

    def finish_weight_update(self) -> None:
        """Process what is left, and the head that is tied to the embedding.

        On a CPU vLLM keeps the output head as a prepacked copy, and a reload does not process a
        head that is tied to the embedding again: without repacking it the engine would answer with
        the old head, and its log-probabilities would silently be wrong.
        """
        finalize_layerwise_reload(self.model, self.model_config)
        head = getattr(self.model, "lm_head", None)
        if current_platform.is_cpu() and head is not None and hasattr(head, "quant_method"):
            head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        """Nothing is kept between updates."""


class WorkerExtension:
    """Mixed into vLLM's workers: naming it makes them import this module, no more."""


WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryEngine)

# A replica that was killed cannot stop its engine, nor an engine its workers, and vLLM's own pipes
# tell them nothing while they are suspended or wait for a device. vLLM starts these processes from
# threads that live as long as theirs (Serve's for user code, the engine's main thread).
if parent := multiprocessing.parent_process():
    die_with_parent(parent.pid)
