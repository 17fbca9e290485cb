"""Tokens, FLOP and seconds of an iteration, against manual counts and torch's counter."""

from pathlib import Path
from typing import Any

import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2ForCausalLM

from hgpo_rllib.config import RunConfig
from hgpo_rllib.run.estimate import (
    MFU,
    PEAK_FLOPS,
    SequenceLength,
    forward_flop,
    full_sequence,
    work,
)
from hgpo_rllib.run.model_size import ModelSize
from tests.unit.learner.learner_reference import build_learner
from tests.unit.run.model_sizes import TINY, run, tiny_qwen

TURN = SequenceLength(prompt=100, response=20)
# `TINY` has 3 layers with queries and output of 96 x 96, keys and values of 96 x 32, three matrices
# of 96 x 400, and biases; its head is 320 x 96.
LAYERS = 3 * (2 * 96 * 96 + 2 * 96 * 32 + 3 * 96 * 400 + 96 + 2 * 32)
HEAD = 320 * 96
ATTENTION = 4 * 3 * 96 * (120 * 121 // 2)
FORWARD = 2 * (LAYERS * 120 + HEAD * 20) + ATTENTION
PROMPT = 2 * LAYERS * 100 + 4 * 3 * 96 * (100 * 101 // 2)


def small(**sections: Any) -> RunConfig:
    """Return a run of 2 x 4 episodes of 5 steps."""
    rollout = {"groups_per_iteration": 2, "group_size": 4} | sections.pop("rollout", {})
    return run(env={"max_steps": 5}, rollout=rollout, **sections)


def update(**sections: Any) -> float:
    """Return the FLOP of the update for one of the 40 turns."""
    return work(small(**sections), TINY, TURN)["FLOP of the update"] / 40


def test_tokens() -> None:
    """All turns are sampled once, and each epoch trains on their prompts and responses."""
    got = work(small(learner={"num_epochs": 3}), TINY, TURN)
    assert list(got.values())[:4] == [40, 4000, 800, 3 * 4800]
    assert full_sequence(small()) == SequenceLength(4096, 512)


def test_conversations() -> None:
    """An episode's turns share a sequence; turns that do not fit start another sequence."""
    agent = {"context": "conversation", "max_response_tokens": 20}
    config = small(agent=agent | {"max_prompt_tokens": 300})
    length = full_sequence(config)
    assert length == SequenceLength(300 - 4 * 20, 5 * 20, turns=5)
    got = work(config, TINY, length)
    assert list(got.values())[:4] == [40, 8 * 220, 8 * 100, 8 * 320]
    assert got["FLOP of sampling"] == 8 * forward_flop(TINY, 320, 100)
    short = small(agent=agent | {"max_prompt_tokens": 50})
    length = full_sequence(short)
    assert length == SequenceLength(10, 60, turns=3)
    assert list(work(short, TINY, length).values())[:4] == [40, 2 * 8 * 10, 2 * 8 * 60, 2 * 8 * 70]


def test_critic_of_conversations() -> None:
    """Values of turns need the tokens before the last response."""
    agent = {"context": "conversation", "max_response_tokens": 20, "max_prompt_tokens": 300}
    learner = {"kl_coeff": 0, "critic": "head"}
    config = small(agent=agent, algorithm={"estimator": "ppo"}, learner=learner)
    update = work(config, TINY, full_sequence(config))["FLOP of the update"] / 8
    assert update == 3 * forward_flop(TINY, 320, 100) + forward_flop(TINY, 300, 0)


def test_forward() -> None:
    """The head is computed for response tokens only, and attention is causal."""
    assert forward_flop(TINY, 120, 20) == FORWARD
    assert forward_flop(TINY, 100, 0) == PROMPT
    assert work(small(), TINY, TURN)["FLOP of sampling"] == 40 * FORWARD


def test_update() -> None:
    """Each further set of log-probabilities costs one forward pass more."""
    plain = {"kl_coeff": 0, "minibatch_size": 10}
    layers = FORWARD - 2 * HEAD * 20
    assert update(learner=plain) == 3 * FORWARD
    assert update(learner=plain | {"num_epochs": 2}) == 6 * FORWARD
    assert update(learner=plain | {"kl_coeff": 0.1, "num_epochs": 2}) == 8 * FORWARD
    assert update(learner=plain | {"old_logp": "recomputed"}) == 3.75 * FORWARD
    checkpointing = plain | {"gradient_checkpointing": True}
    assert update(learner=checkpointing) == 3 * FORWARD + layers
    lora = {"model_path": "x", "lora_rank": 4}
    assert update(learner=plain, model=lora) == 3 * FORWARD - (FORWARD - ATTENTION)


def test_critic() -> None:
    """A head computes values of prompts; a separate critic is also trained on them."""
    ppo = {"algorithm": {"estimator": "ppo"}}
    learner = {"kl_coeff": 0, "num_epochs": 2}
    assert update(learner=learner | {"critic": "head"}, **ppo) == 6 * FORWARD + PROMPT
    separate = learner | {"critic": "separate"}
    assert update(learner=separate, **ppo) == 6 * FORWARD + 7 * PROMPT
    separate["gradient_checkpointing"] = True
    expected = 8 * FORWARD - 4 * HEAD * 20 + 9 * PROMPT
    assert update(learner=separate, **ppo) == expected


@pytest.mark.parametrize("estimator", ["hcapo", "gear", "sdar"])
def test_teacher(estimator: str) -> None:
    """A teacher needs one more forward pass; the text added to its prompts is not counted."""
    got = update(learner={"kl_coeff": 0}, algorithm={"estimator": estimator})
    assert got == 4 * FORWARD


def test_critic_of_tokens() -> None:
    """A critic of tokens also reads responses and is computed in `critic_layers` layers."""
    ppo = {"algorithm": {"estimator": "ppo_tokens"}}
    learner = {"kl_coeff": 0, "critic": "separate"}
    layers = FORWARD - 2 * HEAD * 20
    assert update(learner=learner, **ppo) == 3 * FORWARD + 4 * layers
    one = forward_flop(TINY.first_layers(1), 120, 0)
    assert update(learner=learner | {"critic_layers": 1}, **ppo) == 3 * FORWARD + 4 * one


def test_seconds() -> None:
    """FLOP are divided by each side's GPUs; with one_step_off, sampling and update overlap."""
    gpus = {
        "cluster": {"num_learners": 2, "learner_gpus": 1},
        "policy_server": {"num_replicas": 4, "replica_gpus": 1},
    }
    config = small(rollout={"groups_per_iteration": 4}, **gpus)
    got, peak = work(config, TINY, TURN), MFU * PEAK_FLOPS["H100"]
    sampling, learning = got["FLOP of sampling"] / 4 / peak, got["FLOP of the update"] / 2 / peak
    assert got["seconds on H100"] == pytest.approx(sampling + learning)
    rollout = config.rollout.model_copy(update={"schedule": "one_step_off"})
    overlapping = work(config.model_copy(update={"rollout": rollout}), TINY, TURN)
    assert overlapping["seconds on H100"] == pytest.approx(max(sampling, learning))
    assert "seconds on H100" not in work(small(), TINY, TURN)
    six = work(small(rollout={"groups_per_iteration": 6}, **gpus), TINY, TURN)
    slowest = six["FLOP of sampling"] * 2 / 6 / peak  # a replica plays whole groups
    assert six["seconds on H100"] == pytest.approx(slowest + six["FLOP of the update"] / 2 / peak)


@pytest.mark.parametrize(("checkpointing", "tolerance"), [(False, 0.002), (True, 0.05)])
def test_what_torch_counts(checkpointing: bool, tolerance: float, tmp_path: Path) -> None:
    """The estimate matches torch's count of matrix products for an update of four mini-batches."""
    chosen = {"minibatch_size": 10, "old_logp": "recomputed", "micro_batch_tokens": 1200}
    chosen["gradient_checkpointing"] = checkpointing
    Qwen2ForCausalLM(tiny_qwen()).save_pretrained(tmp_path)
    learner = build_learner(str(tmp_path), mismatch_alarm=None, max_ratio=None, **chosen)
    learner._weights_seq_no = 1
    columns = {
        "prompt_ids": torch.randint(1, 320, (40, TURN.prompt)).int(),
        "response_ids": torch.randint(1, 320, (40, TURN.response)).int(),
        "prompt_length": torch.full((40,), TURN.prompt),
        "response_length": torch.full((40,), TURN.response),
        "advantage": torch.randn(40),
        "behavior_logp": torch.full((40, TURN.response), -5.0),
    }
    with FlopCounterMode(display=False) as counter:
        learner._update({DEFAULT_MODULE_ID: columns})
    size = ModelSize(tiny_qwen())
    size.attention = 0  # torch does not count attention on a CPU
    expected = work(small(learner=chosen), size, TURN)["FLOP of the update"]
    assert counter.get_total_flops() == pytest.approx(expected, rel=tolerance)
