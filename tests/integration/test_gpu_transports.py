"""vLLM's transfers between GPUs, without GPUs: a learner and engines in separate processes.

Ray, vLLM's trainer side and its message types are real. Calls that need a GPU are replaced, and so
is the engine.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from ray.actor import ActorHandle
from vllm.distributed.weight_transfer import ipc_engine, nccl_engine

from hgpo_rllib.policy_server import gpu_transports, vllm_engine
from hgpo_rllib.policy_server.engine import WeightTransport, find_transport
from hgpo_rllib.policy_server.publisher import WeightPublisher
from hgpo_rllib.policy_server.types import STARTING_WEIGHTS, EngineDiedError, Sampling, WeightTag
from hgpo_rllib.policy_server.versioned_engine import VersionedEngine
from hgpo_rllib.settings.policy_server import WEIGHT_TRANSPORTS

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cluster")]
WORKERS = 2  # processes of one engine
INIT: dict[str, Any] = {
    "nccl": nccl_engine.NCCLWeightTransferInitInfo,
    "ipc": ipc_engine.IPCWeightTransferInitInfo,
}
UPDATE: dict[str, Any] = {
    "nccl": nccl_engine.NCCLWeightTransferUpdateInfo,
    "ipc": ipc_engine.IPCWeightTransferUpdateInfo,
}
LOADED = ["pause", "init", "start", "update", "finish", "shutdown"]


class Learner:
    """A learner process with a simulated GPU."""

    def __init__(self) -> None:
        """Replace all calls that need a GPU."""
        gpu_transports.DEVICE = "cpu"
        self.sent: list[Any] = []
        nccl_engine.open_trainer_endpoint = self._open
        nccl_engine.packed_nccl_broadcast_producer = self._broadcast
        torch.accelerator.current_device_index = lambda: 0
        torch.cuda.get_device_properties = lambda _: SimpleNamespace(uuid="GPU-7")
        torch.cuda.ipc_collect = lambda: None
        ipc_engine.reduce_tensor = lambda tensor: (None, ("handle", tensor.tolist()))

    def use(self, backend: str) -> None:
        """Publish from now on through this transport, as a new learner would."""
        self.sent.clear()
        self._publisher = WeightPublisher(torch.bfloat16, gpu_transports.GPUTransport(backend))

    def _open(self, start: nccl_engine.NCCLTrainerInitInfo) -> Any:
        self.sent.append((start.world_size, start.master_address))
        return SimpleNamespace(destroy=lambda: self.sent.append("destroyed"))

    def _broadcast(self, iterator: Any, group: Any, src: int, **_: Any) -> None:
        assert src == 0
        self.sent.append({name: tensor.tolist() for name, tensor in iterator})

    def publish(self, value: float) -> WeightTag:
        """Publish one matrix filled with this value."""
        return self._publisher.publish({"w": torch.full((1, 2), value)})

    def sent_messages(self) -> list[Any]:
        """Return the messages that NCCL would have sent."""
        return self.sent


class RecordingVLLM:
    """The methods of vLLM's `AsyncLLM` that an update calls, with a record of the calls."""

    def __init__(self, transport: str, fail: bool = False):
        """Create the engine; if `fail`, it rejects new weights."""
        self.transport, self.fail = transport, fail
        self.calls: list[str] = []
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(world_size=WORKERS))

    async def pause_generation(self, mode: str, clear_cache: bool) -> None:
        self.calls.append("pause")

    async def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        if method == "update_weights" and self.fail:
            raise RuntimeError("no room")
        self.calls.append(method.partition("_")[0])
        if method == "init_weight_transfer_engine":
            self.init = INIT[self.transport](**kwargs["init_info"])
        if method == "update_weights":
            self.update = UPDATE[self.transport](**kwargs["update_info"])

    async def shutdown_weight_transfer_engine(self) -> None:
        self.calls.append("shutdown")

    async def update_weight_version(self, version: str) -> None:
        self.calls.append(version)

    async def resume_generation(self) -> None:
        self.calls.append("resume")


def load(vllm: RecordingVLLM, *tags: WeightTag) -> None:
    """Start a replica with this engine and let it generate under these weights."""

    async def answer() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vllm_engine, "AsyncEngineArgs", lambda **_: None)
            patch.setattr(vllm_engine.AsyncLLM, "from_engine_args", lambda *_, **__: vllm)
            engine = vllm_engine.VLLMEngine({"skip_tokenizer_init": True})
        transport: WeightTransport = find_transport(WEIGHT_TRANSPORTS[vllm.transport])
        replica = VersionedEngine(engine, transport, "wait")
        for tag in tags:
            await replica.generate([], Sampling(1.0, 2, ()), tag)

    asyncio.run(asyncio.wait_for(answer(), 60))


@pytest.fixture(scope="module")
def learner(cluster: None) -> ActorHandle:
    """Return a learner process."""
    return ray.remote(num_cpus=0)(Learner).remote()


@pytest.mark.parametrize("transport", ["nccl", "ipc"])
def test_engines_load_by_themselves(
    learner: ActorHandle, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine loads each version once, in vLLM's order of calls, even if it starts later."""
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # as in replicas
    ray.get(learner.use.remote(transport))
    first = ray.get(learner.publish.remote(1.0))
    assert isinstance(first.handle, gpu_transports.WeightsOnLearner)
    assert not first.handle.tensors
    early, late = RecordingVLLM(transport), RecordingVLLM(transport)
    load(early, STARTING_WEIGHTS, first, first)
    assert early.calls == [*LOADED, first.version, "resume"]
    second = ray.get(learner.publish.remote(2.0))
    load(late, second, first)
    assert late.calls == [*LOADED, second.version, "resume"]
    assert (late.update.names, late.update.dtype_names) == (["w"], ["bfloat16"])
    assert late.update.shapes == [[1, 2]]
    if transport == "ipc":
        assert late.update.ipc_handles == [{"GPU-7": ("handle", [[2.0, 2.0]])}]
    else:
        assert (late.init.rank_offset, late.init.world_size) == (1, 1 + WORKERS)
        opened = (1 + WORKERS, late.init.master_address)
        expected = [opened, {"w": [[1.0, 1.0]]}, "destroyed"]
        expected += [opened, {"w": [[2.0, 2.0]]}, "destroyed"]
        assert ray.get(learner.sent_messages.remote()) == expected


def test_a_learner_that_does_not_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the learner waits in NCCL for a lost replica, the new replica ends after a timeout."""
    monkeypatch.setattr(vllm_engine, "LEARNER_TIMEOUT_S", 0.5)
    queue = gpu_transports.new_queue()
    weights = gpu_transports.WeightsOnLearner("bfloat16", {}, number=1, transfers=queue)
    with pytest.raises(EngineDiedError, match=r"no call of the learner for 0\.5 s"):
        load(RecordingVLLM("nccl"), WeightTag("w", 1, weights))


def test_failures_end_the_replica_and_not_the_learner(learner: ActorHandle) -> None:
    """A failed load, or a replaced version, ends the replica; the next engine can load."""
    ray.get(learner.use.remote("nccl"))
    gone, kept = (ray.get(learner.publish.remote(value)) for value in (1.0, 2.0))
    with pytest.raises(EngineDiedError, match="no room"):
        load(RecordingVLLM("nccl", fail=True), kept)
    with pytest.raises(EngineDiedError, match="version 1 was replaced by 2"):
        load(RecordingVLLM("nccl"), gone)
    vllm = RecordingVLLM("nccl")
    load(vllm, kept)
    assert vllm.calls[-2:] == [kept.version, "resume"]
