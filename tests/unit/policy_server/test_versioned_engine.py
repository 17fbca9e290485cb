"""Engines and weight transports selected by name, and updates of a versioned engine."""

import asyncio
import math
from typing import Any

import pytest
import torch

from hgpo_rllib.config import parse_config
from hgpo_rllib.policy_server import object_store, vllm_settings
from hgpo_rllib.policy_server.engine import (
    Engine,
    EngineModule,
    WeightTransport,
    find_engine,
    find_transport,
)
from hgpo_rllib.policy_server.publisher import WeightPublisher
from hgpo_rllib.policy_server.server import replica_options
from hgpo_rllib.policy_server.types import (
    STARTING_WEIGHTS,
    EngineDiedError,
    Generation,
    Prompt,
    RequestFailedError,
    Sampling,
    WeightTag,
)
from hgpo_rllib.policy_server.versioned_engine import VersionedEngine
from hgpo_rllib.settings.policy_server import ENGINES, WEIGHT_TRANSPORTS, UpdateMode
from tests.unit.policy_server import memory_engine
from tests.unit.policy_server.memory_engine import MemoryEngine, named_memory

__all__ = ["named_memory"]  # fixture
SAMPLING = Sampling(1.0, 2, ())

# Checked by mypy.
ENGINE: Engine = MemoryEngine()
MODULES: list[EngineModule] = [vllm_settings, memory_engine]
TRANSPORTS: list[WeightTransport] = [object_store, memory_engine]


def publisher() -> WeightPublisher:
    return WeightPublisher(torch.float32, find_transport(WEIGHT_TRANSPORTS["memory"]))


def weights(to: WeightPublisher, logp: float) -> WeightTag:
    return to.publish({"logp": torch.tensor(logp)})


@pytest.mark.usefixtures("named_memory")
def test_by_name() -> None:
    """Settings select engine and transport by name, and replicas get the engine's environment."""
    names = {"engine": "memory", "weight_transport": "memory"}
    server = parse_config({"policy_server": names}).policy_server
    options = replica_options(server)["ray_actor_options"]
    assert options["runtime_env"]["env_vars"] == {"MEMORY_ENGINE": "1"}
    assert isinstance(find_engine(ENGINES[server.engine]).start(*[None] * 4), MemoryEngine)  # type: ignore[arg-type]


@pytest.mark.usefixtures("named_memory")
async def test_requests_bring_the_weights() -> None:
    """A request loads newer weights but no older ones, and a refused prompt returns its error."""
    engine, learner = MemoryEngine(), publisher()
    first, second = weights(learner, -2.0), weights(learner, -3.0)
    versioned = VersionedEngine(engine, memory_engine, "keep")
    for tag, held, logp in (
        (STARTING_WEIGHTS, STARTING_WEIGHTS, -1.0),
        (first, first, -2.0),
        (second, second, -3.0),
        (first, second, -3.0),
    ):
        prompts = [Prompt([1, 2], 3), Prompt([])]
        answer, refused = await versioned.generate(prompts, SAMPLING, tag)
        assert isinstance(refused, RequestFailedError)
        assert isinstance(answer, Generation)
        assert (answer.token_ids.tolist(), answer.logp.tolist()) == ([6, 6], [logp, logp])
        assert answer.version == held.version
    updates = [("pause: keep", tag.version, "resume") for tag in (first, second)]
    assert engine.calls == [call for update in updates for call in update]


@pytest.mark.usefixtures("named_memory")
async def test_requests_wake_the_engine_once() -> None:
    """Concurrent requests wake the engine once, before the new weights are loaded."""
    engine, new = MemoryEngine(), weights(publisher(), -2.0)
    versioned = VersionedEngine(engine, memory_engine, "keep")
    await versioned.sleep()
    call = [Prompt([1], 0)], SAMPLING, new
    await asyncio.gather(*(versioned.generate(*call) for _ in range(3)))
    assert engine.calls == ["sleep", "wake", "pause: keep", new.version, "resume"]


@pytest.mark.usefixtures("named_memory")
async def test_requests_that_bring_two_versions() -> None:
    """A request that waited for the update of another one loads its own newer weights."""
    learner = publisher()
    tags = [weights(learner, logp) for logp in (-2.0, -3.0)]
    versioned = VersionedEngine(MemoryEngine(), memory_engine, "keep")
    calls = (versioned.generate([Prompt([1])], SAMPLING, tag) for tag in tags)
    _, (answer,) = await asyncio.gather(*calls)
    assert isinstance(answer, Generation)
    assert answer.version == tags[1].version


@pytest.mark.usefixtures("named_memory")
async def test_the_update_of_a_cancelled_request_is_completed() -> None:
    """The update is neither interrupted nor begun again."""

    class SlowEngine(MemoryEngine):
        """An engine that pauses when the test lets it."""

        def __init__(self) -> None:
            super().__init__()
            self.asked, self.idle = asyncio.Event(), asyncio.Event()

        async def pause(self, mode: UpdateMode) -> None:
            self.asked.set()
            await self.idle.wait()
            await super().pause(mode)

    new = weights(publisher(), -2.0)
    slow = SlowEngine()
    versioned = VersionedEngine(slow, memory_engine, "wait")
    request = asyncio.create_task(versioned.generate([], SAMPLING, new))
    await slow.asked.wait()
    request.cancel()
    await asyncio.wait({request})
    slow.idle.set()
    await versioned.generate([], SAMPLING, new)
    assert slow.calls == ["pause: wait", new.version, "resume"]


@pytest.mark.usefixtures("named_memory")
async def test_an_engine_with_half_an_update_answers_no_request() -> None:
    """After a failed update, requests with any weights raise EngineDiedError."""
    tag = weights(publisher(), math.nan)
    engine = VersionedEngine(MemoryEngine(), memory_engine, "wait")
    for wanted in (tag, tag, STARTING_WEIGHTS):
        with pytest.raises(EngineDiedError, match="logp is NaN"):
            await engine.generate([], SAMPLING, wanted)


@pytest.mark.usefixtures("named_memory")
async def test_a_response_sampled_during_half_an_update_is_lost() -> None:
    """A request that was running during a failed update raises EngineDiedError."""

    class SlowEngine(MemoryEngine):
        """An engine that responds to a prompt when an update has ended."""

        def __init__(self) -> None:
            super().__init__()
            self.asked, self.updated = asyncio.Event(), asyncio.Event()

        async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
            self.asked.set()
            await self.updated.wait()
            return await super().generate(prompt, sampling)

        async def resume(self) -> None:
            self.updated.set()

    slow = SlowEngine()
    engine = VersionedEngine(slow, memory_engine, "keep")
    running = asyncio.create_task(engine.generate([Prompt([1])], SAMPLING, STARTING_WEIGHTS))
    await slow.asked.wait()
    with pytest.raises(EngineDiedError, match="logp is NaN"):
        await engine.generate([], SAMPLING, weights(publisher(), math.nan))
    with pytest.raises(EngineDiedError, match="logp is NaN"):
        await running


def test_vllm_that_has_died_is_reported_as_the_protocol_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM's EngineDeadError becomes EngineDiedError, also during a weight update."""
    from vllm.v1.engine.exceptions import EngineDeadError

    from hgpo_rllib.policy_server import vllm_engine

    class Dead:
        """An engine whose methods all raise vLLM's error."""

        def __getattr__(self, name: str) -> Any:
            def fail(*_: Any, **__: Any) -> Any:
                raise EngineDeadError

            return fail

    monkeypatch.setattr(vllm_engine, "AsyncEngineArgs", lambda **_: None)
    monkeypatch.setattr(vllm_engine.AsyncLLM, "from_engine_args", lambda *_, **__: Dead())
    engine = vllm_engine.VLLMEngine({"skip_tokenizer_init": True})
    for call in (
        lambda: engine.generate(Prompt([1]), SAMPLING),
        lambda: engine.pause("wait"),
        engine.resume,
        engine.check_health,
    ):
        with pytest.raises(EngineDiedError, match="the engine died"):
            asyncio.run(call())
