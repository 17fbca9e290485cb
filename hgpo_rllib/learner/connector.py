"""The learner connector: groups of episodes to token columns with advantages."""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.utils.metrics import ALL_MODULES

from hgpo_rllib.advantages import diagnostics
from hgpo_rllib.advantages.memory import estimator_peak_mib
from hgpo_rllib.config import AlgorithmSettings
from hgpo_rllib.learner.batching import Columns, signal_columns, token_columns
from hgpo_rllib.learner.critic import explained_variance, step_values
from hgpo_rllib.rollout.group import POLICY_ID
from hgpo_rllib.rollout.trajectories import ScoredTrajectories, members_of, score_groups
from hgpo_rllib.settings.learner import LearnerSettings


class HGPOConnector(ConnectorV2):
    """Computes values, returns and advantages, and lays the steps out as padded columns."""

    def __init__(
        self, *args: Any, settings: AlgorithmSettings, learner: LearnerSettings, **kwargs: Any
    ):
        """`settings`: returns and advantages; `learner`: the critic."""
        super().__init__(*args, **kwargs)
        self._settings = settings
        self._learner = learner

    def __call__(
        self,
        *,
        rl_module: MultiRLModule,
        batch: dict[str, Any],
        episodes: list[MultiAgentEpisode],
        metrics=None,
        **kwargs,
    ) -> dict[str, Any]:
        """Called by RLlib before an update; `rl_module` holds the critic."""
        columns = token_columns(members_of(episodes))
        value = self._values(rl_module, columns)
        start = time.perf_counter()
        scored = score_groups(episodes, self._settings, value)
        seconds = time.perf_counter() - start
        if metrics is not None:
            metrics.log_value((ALL_MODULES, "advantage_seconds"), seconds, window=1)
            for name, number in self._diagnostics(scored).items():
                metrics.log_value((POLICY_ID, name), number, window=1)
        return {POLICY_ID: columns | signal_columns(scored)}

    def _values(self, rl_module: MultiRLModule, columns: Columns) -> NDArray[np.float64] | None:
        if self._learner.critic == "none":
            return None
        module = rl_module[POLICY_ID].unwrapped()
        device = next(module.parameters()).device
        rows = np.arange(len(columns["prompt_length"]))
        return step_values(module, columns, rows, self._learner, device)

    def _diagnostics(self, scored: ScoredTrajectories) -> dict[str, float]:
        settings = self._settings.estimator_settings()
        peak = estimator_peak_mib(self._settings.estimator, scored.steps, settings)
        summary = diagnostics.summary(scored.steps, scored.advantage, settings)
        summary["advantage_peak_mib"] = peak
        if scored.steps.value is not None:
            explained = explained_variance(scored.steps.value, scored.steps.step_return)
            summary["explained_variance"] = explained
        return summary
