"""The learner connector: groups of episodes to token columns with advantages."""

import time
from typing import Any

from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.utils.metrics import ALL_MODULES

from hgpo_rllib.advantages import diagnostics
from hgpo_rllib.advantages.memory import estimator_peak_mib
from hgpo_rllib.config import AlgorithmSettings
from hgpo_rllib.learner.batching import step_columns
from hgpo_rllib.rollout.group import POLICY_ID
from hgpo_rllib.rollout.trajectories import ScoredTrajectories, score_groups


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
        seconds = time.perf_counter() - start
        if metrics is not None:
            metrics.log_value((ALL_MODULES, "advantage_seconds"), seconds, window=1)
            for name, value in self._diagnostics(scored).items():
                metrics.log_value((POLICY_ID, name), value, window=1)
        return {POLICY_ID: step_columns(scored)}

    def _diagnostics(self, scored: ScoredTrajectories) -> dict[str, float]:
        settings = self._settings.estimator_settings()
        peak = estimator_peak_mib(self._settings.estimator, scored.steps, settings)
        summary = diagnostics.summary(scored.steps, scored.advantage, settings)
        return summary | {"advantage_peak_mib": peak}
