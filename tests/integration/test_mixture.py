"""One policy trained on two environments, with the engine."""

from pathlib import Path

import pytest

from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.jsonl import ALL
from hgpo_rllib.run.inputs import check_inputs
from hgpo_rllib.run.metrics import iteration_metrics
from tests.integration.conftest import SMALL
from tests.paths import ROOT
from tests.unit.env_wrappers.textcraft.textcraft_data import needs_package

pytestmark = pytest.mark.integration
RUN_FILE = ROOT / "tuned_examples" / "mixture_pocket.yaml"
MIXED = "env.options.environments"


@needs_package
@pytest.mark.usefixtures("shared_server")
def test_a_mixture_trains(run_config: RunConfig, tmp_path: Path) -> None:
    """Each group has one environment and its prompts; a restored run plays the same groups."""
    config = load_config(
        RUN_FILE,
        [
            *(change for change in SMALL if not change.startswith("env.")),
            f"{MIXED}.alfworld.data={run_config.env.data}",
            f"{MIXED}.alfworld.options.task_types=[pick_and_place_simple]",
            f"{MIXED}.alfworld.max_steps=6",
            f"{MIXED}.textcraft.max_steps=3",
            f"model.model_path={run_config.model.model_path}",
            "agent.max_response_tokens=32",
            "agent.constrain_actions=false",
            "rollout.temperature=2.0",
            "policy_server.replica_cpus=0",
            "policy_server.max_logp_gap=null",
        ],
    )
    check_inputs(config)
    algorithm = HGPOConfig.from_run_config(config).build_algo()
    names = []
    try:
        for iteration in range(2):
            if iteration:
                state = algorithm.save_to_path(tmp_path / "state")
            algorithm.train()
            row = iteration_metrics(algorithm.last_iteration)
            groups: dict[str, set[str]] = {}
            for played in algorithm.last_iteration.scored.trajectories:
                groups.setdefault(played.group, set()).add(played.info["mixture"]["environment"])
                prompt = algorithm.env_runner.renderer.decode(played.turns[0].prompt_ids)
                is_craft = played.info["mixture"]["environment"] == "textcraft"
                assert prompt.startswith("Crafting commands:" if is_craft else "Task:")
                assert len(played) <= (3 if is_craft else 6)
            assert all(len(environments) == 1 for environments in groups.values())
            names.append([*map(min, groups.values())])
            assert row["episodes"] == 16
            for name in {*names[-1]}:
                assert row[f"episodes/{name}"] == 4 * names[-1].count(name)
        assert {*names[0], *names[1]} == {"alfworld", "textcraft"}
        held_out = algorithm.evaluate()["env_runners"]
        splits = {*config.evaluation.splits, ALL}
        assert {split: held_out[split]["episodes"] for split in splits} == dict.fromkeys(
            config.evaluation.splits, 3
        ) | {ALL: 12}
        algorithm.restore_from_path(state)
        algorithm.train()
        again = [
            t.info["mixture"]["environment"] for t in algorithm.last_iteration.scored.trajectories
        ]
        assert again[::4] == names[1]
    finally:
        algorithm.stop()
