"""Weight updates of a policy server with two replicas: responses and memory."""

import copy
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray import serve
from ray._private.internal_api import node_stats
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
from transformers import PreTrainedModel

from hgpo_rllib.config import RunConfig
from hgpo_rllib.models import checkpoint_form, load_model
from hgpo_rllib.policy_server import deployment, object_store
from hgpo_rllib.policy_server import server as server_module
from hgpo_rllib.policy_server.publisher import WeightPublisher
from hgpo_rllib.policy_server.types import STARTING_WEIGHTS, Generation, Prompt, Sampling, WeightTag
from hgpo_rllib.settings.policy_server import UpdateMode
from tests.integration.weights import reference_logp
from tests.processes import wait_until

pytestmark = pytest.mark.integration
# Longer than a block of the KV cache, 128 tokens on a CPU, so that prefixes are cached.
PROMPTS = [list(range(40 + shift, 240 + shift)) for shift in range(4)]
SESSIONS = ["0/train/0", "0/train/1"]  # groups of different replicas
LONG = 300  # maximum number of tokens of responses that an update interrupts


class NamedReplica(deployment.PolicyReplica):
    """A replica that returns its name, and whose update mode can be set to save server starts."""

    async def name(self) -> str:
        """Return Serve's id of the replica."""
        return serve.get_replica_context().replica_id.unique_id

    async def set_mode(self, mode: UpdateMode) -> None:
        """Set the update mode, as if the server had been started with it."""
        self.update_mode = mode


class Learner:
    """A model whose weights change with each update."""

    def __init__(self, path: str) -> None:
        self.model = load_model(path)
        self.publisher = WeightPublisher(torch.float32, object_store)
        self.noise = torch.Generator().manual_seed(0)

    def update(self) -> WeightTag:
        """Change the weights a little and publish them."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                change = torch.randn(parameter.shape, generator=self.noise)
                parameter += 0.1 * parameter.std(correction=0) * change
        return self.publisher.publish(checkpoint_form(self.model.state_dict(), self.model.config))


@pytest.fixture(scope="module")
def server(run_config: RunConfig, cluster: None) -> Iterator[Any]:
    """Yield the handle of a server with two replicas."""
    settings = run_config.policy_server.model_copy(update={"num_replicas": 2, "replica_cpus": 0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module, "PolicyReplica", NamedReplica)
        # By default, Serve switches to the other replica after 0.1 s, which is short if busy.
        patch.setattr(ConsistentHashRouter, "queue_len_response_deadline_s", 60.0)
        start = server_module.PolicyServer(run_config.model, run_config.agent, settings, seed=1)
        with start as running:
            yield running._handle


def test_consecutive_groups_are_on_different_replicas(server: Any) -> None:
    """Calls of a group go to one replica; groups are spread evenly, calls without one randomly."""
    replicas = []
    for number in range(12):
        group = server.options(session_id=f"0/train/{number}")
        (name,) = {group.name.remote().result() for _ in range(3)}
        replicas.append(name)
    assert len(set(replicas)) == 2
    assert replicas == replicas[:2] * 6
    assert {server.name.remote().result() for _ in range(40)} == set(replicas)


@pytest.fixture
def learner(run_config: RunConfig) -> Learner:
    """Return a learner with the server's starting weights and its own publisher."""
    return Learner(str(run_config.model.model_path))


def ask(server: Any, session: str, tag: WeightTag, tokens: int = 16) -> list[Generation]:
    return start(server, session, tag, tokens).result()


def start(server: Any, session: str, tag: WeightTag, tokens: int) -> Any:
    """Start a call and return it."""
    prompts = [Prompt(ids, seed) for seed, ids in enumerate(PROMPTS)]
    sampling = Sampling(1.0, max_tokens=tokens, stop_token_ids=())
    return server.options(session_id=session).generate.remote(prompts, sampling, tag)


def gap(model: PreTrainedModel, answers: list[Generation]) -> float:
    """Return the largest difference of log-probabilities."""
    return max(
        float(np.abs(reference_logp(model, ids, answer.token_ids) - answer.logp).max())
        for ids, answer in zip(PROMPTS, answers, strict=True)
    )


def stored_bytes() -> int:
    """Return the bytes used in Ray's object store on this node."""
    node = ray.nodes()[0]
    stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"])
    return stats.store_stats.object_store_bytes_used


def test_both_replicas_equal_the_learner_after_every_update(server: Any, learner: Learner) -> None:
    """Both replicas follow five updates, and the object store frees versions without a tag."""
    for session in SESSIONS:
        answers = ask(server, session, STARTING_WEIGHTS)
        assert {answer.version for answer in answers} == {STARTING_WEIGHTS.version}
        assert gap(learner.model, answers) < 1e-4
    empty = stored_bytes()
    tag = STARTING_WEIGHTS
    for _ in range(5):
        before = copy.deepcopy(learner.model)
        tag = learner.update()
        for session in SESSIONS:
            answers = ask(server, session, tag)
            assert {answer.version for answer in answers} == {tag.version}
            assert gap(learner.model, answers) < 1e-4
            assert gap(before, answers) > 1e-2
    size = sum(4 * p.numel() for p in learner.model.parameters())
    wait_until(lambda: size < stored_bytes() - empty < 1.5 * size, 20)
    del tag
    wait_until(lambda: stored_bytes() <= empty, 20)


def test_older_weights_are_not_loaded_and_another_publisher_s_are(
    server: Any, learner: Learner, run_config: RunConfig
) -> None:
    first, second = learner.update(), learner.update()
    for asked, held in ((second, second), (first, second), (STARTING_WEIGHTS, second)):
        answers = ask(server, SESSIONS[0], asked)
        assert {answer.version for answer in answers} == {held.version}
        assert gap(learner.model, answers) < 1e-4
    other = Learner(str(run_config.model.model_path))
    tag = other.update()
    answers = ask(server, SESSIONS[0], tag)
    assert {answer.version for answer in answers} == {tag.version}
    assert gap(other.model, answers) < 1e-4


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
def test_responses_under_way(server: Any, learner: Learner, mode: UpdateMode) -> None:
    """Running requests finish, restart or continue; the weight version of each token is known."""
    session = SESSIONS[0]
    server.options(session_id=session).set_mode.remote(mode).result()
    old = learner.update()
    models = {old.version: copy.deepcopy(learner.model)}
    ask(server, session, old)
    begin = time.monotonic()
    ask(server, session, old, LONG)
    all_the_time = time.monotonic() - begin
    under_way = start(server, session, old, LONG)
    time.sleep(all_the_time / 4)
    new = learner.update()
    models[new.version] = learner.model
    answers = ask(server, session, new)
    assert {answer.version for answer in answers} == {new.version}
    assert gap(learner.model, answers) < 1e-4

    answers = under_way.result()
    drawn_by = set()
    for ids, answer in zip(PROMPTS, answers, strict=True):
        parts = answer.versions or ((answer.version, len(answer.token_ids)),)
        assert parts[-1][0] == answer.version
        drawn_by.add(tuple(version for version, _ in parts))
        ends = np.cumsum([tokens for _, tokens in parts])
        for (version, tokens), end in zip(parts, ends, strict=True):
            part = slice(end - tokens, end)
            expected = reference_logp(models[version], ids, answer.token_ids)[part]
            np.testing.assert_allclose(answer.logp[part], expected, atol=1e-4)
        assert ends[-1] == len(answer.token_ids)
    expected_of_mode = {
        "wait": (old.version,),
        "abort": (new.version,),
        "keep": (old.version, new.version),
    }
    # A response may have finished before the update.
    assert expected_of_mode[mode] in drawn_by
    assert drawn_by <= {expected_of_mode[mode], (old.version,)}


def test_a_cancelled_request_leaves_no_half_update(server: Any, learner: Learner) -> None:
    """The weight update of a cancelled request is completed."""
    for _ in range(3):
        tag = learner.update()
        call = start(server, SESSIONS[0], tag, LONG)
        time.sleep(0.05)
        call.cancel()
    answers = ask(server, SESSIONS[0], tag)
    assert gap(learner.model, answers) < 1e-4
