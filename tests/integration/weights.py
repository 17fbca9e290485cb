"""Helpers for tests that update weights or compare responses."""

import numpy as np
import torch
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from transformers import PreTrainedModel

from hgpo_rllib.algorithm import HGPO
from hgpo_rllib.policy_server.types import WeightTag
from hgpo_rllib.rollout.trajectory import Trajectory


def sync(algorithm: HGPO, group: EnvRunnerGroup | None = None) -> WeightTag:
    """Send the learner's weights to env runners, by default the algorithm's; return their tag."""
    runners = group or algorithm.env_runner_group
    runners.sync_weights(from_worker_or_learner_group=algorithm.learner_group, inference_only=True)
    return algorithm.env_runner.weights


def responses(trajectories: list[Trajectory]) -> list[tuple[str, int, list[list[int]]]]:
    """Return the group, the member and the response tokens of each trajectory."""
    return [
        (t.group, t.member, [turn.response_ids.tolist() for turn in t.turns]) for t in trajectories
    ]


def reference_logp(
    model: PreTrainedModel, prompt: list[int], response: np.ndarray, temperature: float = 1.0
) -> np.ndarray:
    """Return the log-probabilities of a response, computed by HuggingFace."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + response.tolist()])).logits[0]
    predicting = (logits.float() / temperature).log_softmax(-1)[len(prompt) - 1 : -1]
    return predicting.gather(-1, torch.tensor(response[:, None], dtype=torch.int64))[:, 0].numpy()
