"""Check after each update that the policy server generates with the learner's new weights."""

import numpy as np
from numpy.typing import NDArray
from ray.rllib.core.learner.learner_group import LearnerGroup

from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.learner.data_parallel import on_learners
from hgpo_rllib.learner.learner import HGPOLearner
from hgpo_rllib.policy_server.types import Prompt, RequestFailedError, Sampling
from hgpo_rllib.rollout.runner import HGPOEnvRunner

SEED = 0
TOKENS = 16


def check_served_policy(
    runner: HGPOEnvRunner, learners: LearnerGroup, probe: NDArray[np.int32]
) -> float:
    """Return the largest difference of log-probabilities between server and learner.

    The server responds to the prompt `probe` with the weights of `runner`, which were just
    published; the learner scores the response.

    Raises:
        RunStoppedError: the difference exceeds `max_logp_gap`. Training on samples from other
            weights than the learner's would fail silently.
    """
    config = runner.config
    tokens = min(TOKENS, config.max_response_tokens)
    sampling = Sampling(config.temperature, tokens, stop_token_ids=())
    (answer,) = runner.generate([Prompt(probe.tolist(), SEED)], sampling, runner.weights)
    if isinstance(answer, RequestFailedError):
        raise answer
    learner_logp = on_learners(learners, HGPOLearner.response_logp, probe, answer.token_ids)
    gap = float(np.abs(learner_logp - answer.logp).max())
    limit = config.max_logp_gap
    if limit is not None and not gap <= limit:
        raise RunStoppedError(
            f"the served policy differs from the learner after an update: log-probabilities of "
            f"the probe differ by {gap:.2g}, more than policy_server.max_logp_gap={limit:g}; if "
            "rounding explains this, raise the limit, or set it to null"
        )
    return gap
