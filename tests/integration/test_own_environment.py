"""Training with the environment of docs/bring_your_own_environment.md."""

from pathlib import Path

import pytest

from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.jsonl import ALL
from hgpo_rllib.run.inputs import check_inputs
from hgpo_rllib.run.metrics import iteration_metrics
from tests.unit.environments.test_own_environment import change
from tests.unit.environments.test_own_environment import folder as folder  # the files of the page

pytestmark = pytest.mark.integration


@pytest.mark.usefixtures("shared_server")
def test_the_page_trains(run_config: RunConfig, folder: Path) -> None:
    """The page's environment trains for two iterations with the pocket model of ALFWorld.

    It needs no spaces.
    """
    change(folder, "    observation_space = action_space = AnyText()\n", "")
    config = load_config(
        folder / "my_run.yaml",
        [
            f"model.model_path={run_config.model.model_path}",
            "model.dtype=float32",
            "agent.prompt=alfworld_compact",
            "agent.max_prompt_tokens=480",
            "agent.max_response_tokens=32",
            "rollout.groups_per_iteration=4",
            # A clone of another game, trained for few steps, seldom wins. But some of its responses
            # are invalid and penalized, so that there is always something to learn.
            "rollout.temperature=2.0",
            "policy_server.replica_cpus=0",
        ],
    )
    check_inputs(config)
    algorithm = HGPOConfig.from_run_config(config).build_algo()
    try:
        for _ in range(2):
            algorithm.train()
            row = iteration_metrics(algorithm.last_iteration)
            played = algorithm.last_iteration.scored.trajectories
            assert row["episodes"] == 4 * 8
            assert row["env_errors"] == 0
            assert row["zero_advantage_fraction"] < 1
            assert row["grad_norm"] > 0
            assert {t.info["game"].split("/")[0] for t in played} == {"lost"}
            prompt = played[0].turns[0].prompt_ids
            assert "find a " in algorithm.env_runner.renderer.tokenizer.decode(prompt)
        held_out = algorithm.evaluate()["env_runners"]
        assert held_out[ALL]["episodes"] == held_out["test"]["episodes"] == 20
        assert set(held_out["test"]["by_task_type"]) <= {"candle", "cloth", "soapbar", "towel"}
    finally:
        algorithm.stop()
