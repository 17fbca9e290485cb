"""Training of agents with strategies and with sub-goals, with the engine."""

import pytest

from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.config import RunConfig
from hgpo_rllib.run.metrics import iteration_metrics

pytestmark = pytest.mark.integration


@pytest.mark.usefixtures("shared_server")
def test_strategies_are_trained(run_config: RunConfig) -> None:
    """Two members share a strategy, which their prompts show; updates and evaluations run."""
    config = HGPOConfig.from_run_config(run_config).training(
        strategy_prompt="strategy_compact",
        strategies=2,
        role_estimators={"strategy": "strata"},
        constrain_actions=False,
        max_logp_gap=None,
        replica_cpus=0,
    )
    algorithm = config.build_algo()
    try:
        for _ in range(2):
            algorithm.train()
            row = iteration_metrics(algorithm.last_iteration)
            assert row["episodes"] == 16
            scored = algorithm.last_iteration.scored
            written = {}
            for played in scored.trajectories:
                (strategy,) = played.turns[0].preceding
                key = played.group, played.member // 2
                assert written.setdefault(key, strategy.completion) == strategy.completion
                shown = " ".join(strategy.completion.split())
                for turn in played.turns:
                    prompt = algorithm.env_runner.renderer.decode(turn.prompt_ids)
                    assert turn.prompt_truncated or not shown or f"Strategy: {shown}\n" in prompt
            assert len(written) == 8
            responses = [r for t in scored.trajectories for u in t.turns for r in u.responses]
            longest = max(len(response.response_ids) for response in responses)
            assert scored.token_advantage.shape == (len(responses), longest)
        assert algorithm.evaluate()["env_runners"]["all"]["episodes"] == 6
    finally:
        algorithm.stop()


@pytest.mark.usefixtures("shared_server")
def test_subgoals_are_trained(run_config: RunConfig) -> None:
    """Agents with sub-goals train with three values, even if responses lack the blocks."""
    config = HGPOConfig.from_run_config(run_config).training(
        subgoals=True,
        estimator="hiper",
        critic="head",
        drop_zero_advantage=False,
        keep_penalty=0.3,
        constrain_actions=False,
        max_logp_gap=None,
        replica_cpus=0,
    )
    algorithm = config.build_algo()
    try:
        algorithm.train()
        row = iteration_metrics(algorithm.last_iteration)
        assert row["episodes"] == 16
        assert row["value_loss"] > 0
        scored = algorithm.last_iteration.scored
        assert scored.token_advantage is not None
        assert scored.token_advantage.any()
        assert {"action"} <= {s.role for t in scored.trajectories for u in t.turns for s in u.spans}
        assert algorithm.learner_group._learner.policy.scorer.critic.head.out_features == 3
    finally:
        algorithm.stop()
