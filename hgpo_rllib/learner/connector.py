"""The learner connector: groups of episodes to token columns with HGPO advantages."""

import time
from typing import Any

import numpy as np
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.utils.metrics import ALL_MODULES

from hgpo_rllib.advantages import HGPOEstimate
from hgpo_rllib.config import AlgorithmSettings
from hgpo_rllib.learner.batching import step_columns
from hgpo_rllib.rollout.group import POLICY_ID
from hgpo_rllib.rollout.trajectories import score_groups


class HGPOConnector(ConnectorV2):
    """Computes returns and advantages, and lays the steps out as padded columns."""

    def __init__(self, *args: Any, settings: AlgorithmSettings, **kwargs: Any):
        """`settings`: returns and advantages."""
        super().__init__(*args, **kwargs)
        self._settings = settings

    def __call__(
        self, *, batch: dict[str, Any], episodes: list[MultiAgentEpisode], metrics=None, **kwargs
    ) -> dict[str, Any]:
        """Called by RLlib before an update."""
        start = time.perf_counter()
        scored = score_groups(episodes, self._settings)
        if metrics is not None:
            seconds = time.perf_counter() - start
            metrics.log_value((ALL_MODULES, "advantage_seconds"), seconds, window=1)
            for name, value in hierarchy_metrics(scored.estimate).items():
                metrics.log_value((POLICY_ID, name), value, window=1)
        return {POLICY_ID: step_columns(scored)}


def hierarchy_metrics(estimate: HGPOEstimate) -> dict[str, float]:
    """How much each depth of shared history contributes: see the names in docs/algorithm.md."""
    result = {"zero_advantage_fraction": float(np.mean(estimate.advantage == 0))}
    for k, size in enumerate(estimate.group_size):
        shared = size > 1
        result[f"level_fraction_k{k}"] = float(shared.mean())
        result[f"level_group_size_k{k}"] = float(size[shared].mean()) if shared.any() else 0.0
    return result
