"""Time weight updates, from publishing in the learner to the first token of the new version."""

import asyncio
import time

import numpy as np
import torch
from transformers import PreTrainedModel

from hgpo_rllib.bench.measure import Row
from hgpo_rllib.config import AgentSettings, ModelSettings, PolicyServerSettings
from hgpo_rllib.models import checkpoint_form, load_model
from hgpo_rllib.policy_server.engine import transport_module
from hgpo_rllib.policy_server.publisher import WeightPublisher
from hgpo_rllib.policy_server.replicas import Replicas
from hgpo_rllib.policy_server.server import PolicyServer
from hgpo_rllib.policy_server.types import (
    STARTING_WEIGHTS,
    Generation,
    Prompt,
    RequestFailedError,
    Sampling,
    WeightTag,
)
from hgpo_rllib.settings.policy_server import WEIGHT_TRANSPORTS

PROMPT = Prompt(list(range(100, 132)), seed=0)
CHECKED_TOKENS = 16
NOISE = 0.01  # added by each update, as a share of the tensor's standard deviation


def bench_weights(model: ModelSettings, server: PolicyServerSettings, updates: int) -> list[Row]:
    """Update a model `updates` times and time each update of a policy server.

    Ray and Serve must be running (`hgpo_rllib.run.cluster.ray_cluster`). The learner is this
    process. One more update warms up, because vLLM's first reload is slower.

    Returns:
        One row per update of an otherwise idle server: seconds until the weights are in Ray's
        object store (``published_s``) and until the first token of the new version is returned
        (``first_token_s``), and the largest difference between log-probabilities of server and
        learner afterwards (``logp_gap``).
    """
    assert model.model_path is not None
    agent = AgentSettings(max_prompt_tokens=64, max_response_tokens=CHECKED_TOKENS)
    with PolicyServer(model, agent, server) as running:
        replicas = Replicas.of(running.app, server.max_outage_s)
        _ask(replicas, STARTING_WEIGHTS, tokens=1)  # the engine's first forward pass is slower
        learner = load_model(model.model_path)
        transport = transport_module(WEIGHT_TRANSPORTS[server.weight_transport])
        publisher = WeightPublisher(getattr(torch, model.dtype), transport)
        measured = [_update(replicas, learner, publisher) for _ in range(1 + updates)]
        return measured[1:]


def _update(replicas: Replicas, learner: PreTrainedModel, publisher: WeightPublisher) -> Row:
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter += NOISE * parameter.std(correction=0) * torch.randn_like(parameter)
    begin = time.perf_counter()
    tag = publisher.publish(checkpoint_form(learner.state_dict(), learner.config))
    published = time.perf_counter()
    first = _ask(replicas, tag, tokens=1)
    answered = time.perf_counter()
    if first.version != tag.version:
        raise RuntimeError(f"the policy server answered under {first.version}, not {tag.version}")
    gap = _logp_gap(learner, _ask(replicas, tag, CHECKED_TOKENS))
    return {
        "published_s": published - begin,
        "first_token_s": answered - begin,
        "logp_gap": gap,
    }


def _ask(replicas: Replicas, tag: WeightTag, tokens: int) -> Generation:
    sampling = Sampling(1.0, max_tokens=tokens, stop_token_ids=())
    (answer,) = asyncio.run(replicas.generate([PROMPT], sampling, tag))
    if isinstance(answer, RequestFailedError):
        raise answer
    return answer


def _logp_gap(learner: PreTrainedModel, answer: Generation) -> float:
    ids = [*PROMPT.token_ids, *answer.token_ids.tolist()]
    with torch.no_grad():
        logits = learner(input_ids=torch.tensor([ids])).logits[0, len(PROMPT.token_ids) - 1 : -1]
    drawn = torch.tensor(answer.token_ids[:, None], dtype=torch.int64)
    logp = logits.log_softmax(-1).gather(-1, drawn)[:, 0].numpy()
    return float(np.abs(logp - answer.logp).max())
