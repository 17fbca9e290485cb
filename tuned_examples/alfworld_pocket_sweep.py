"""Run a grid over alpha and K with Ray Tune directly: `tune.Tuner(HGPO, param_space=…)`.

    .venv/bin/python tuned_examples/alfworld_pocket_sweep.py
    .venv/bin/python tuned_examples/alfworld_pocket_sweep.py --dry-run         # trials, resources
    .venv/bin/python tuned_examples/alfworld_pocket_sweep.py iterations=40     # any setting

This uses the pocket example on 2 CPU cores, with less than 12 GB of memory and no GPU. It runs six
trials of four iterations, which is too few to learn much, to show how to use HGPO from Tune.
`hgpo sweep` adds run directories, seeds, a heat map and `--resume` (docs/sweeps.md).
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from ray import tune

from env_wrappers.errors import DataError
from hgpo_rllib.algorithm import HGPO, HGPOConfig
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.placement import trial_demand
from hgpo_rllib.reporting.console import TrainingConsole
from hgpo_rllib.run.cluster import alive_nodes, ray_cluster
from hgpo_rllib.run.sweep import ResourceAwareVariantGenerator
from hgpo_rllib.run.trainer import prepare_inputs

RUN_FILE = Path(__file__).with_name("alfworld_pocket.yaml")
SHORT = ["name=alfworld_pocket_sweep", "iterations=4", "evaluation.episodes=48"]
SUCCESS = "evaluation/env_runners/all/success_rate"
COLUMNS = ["config/weight_alpha", "config/context_length", "training_iteration", SUCCESS]


def param_space(run: RunConfig) -> HGPOConfig:
    """Return the settings of `run` with grids for `weight_alpha` and `context_length`.

    `context_length` is K of the groups. Prompts show `run.agent.memory_length` turns in every
    trial; with `memory_length=None` they would show K turns.
    """
    return (
        HGPOConfig.from_run_config(run)
        .training(
            weight_alpha=tune.grid_search([0.0, 1.0, 2.0]),
            context_length=tune.grid_search([2, 4]),
        )
        .evaluation(evaluation_interval=run.iterations)
    )


def make_tuner(run: RunConfig) -> tune.Tuner:
    """Create the tuner of `run`, whose data and model exist; Ray and Serve must be running."""
    return tune.Tuner(
        HGPO,
        param_space=param_space(run),
        # Tune counts the resources of the algorithm only; the generator adds its policy server.
        tune_config=tune.TuneConfig(
            search_alg=ResourceAwareVariantGenerator([trial_demand(run.cluster, run.policy_server)])
        ),
        run_config=tune.RunConfig(
            name=run.name,
            storage_path=str(Path(run.output).absolute()),
            stop={"training_iteration": run.iterations},
        ),
    )


def main(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    dry_run: bool = False,
) -> None:
    """Train the pocket model at every point of a grid over alpha and K."""
    run = load_config(RUN_FILE, [*SHORT, *(overrides or [])])
    demand = trial_demand(run.cluster, run.policy_server)
    print(f"a trial needs {demand}")
    if dry_run:
        print(f"grid: {param_space(run).weight_alpha} x {param_space(run).context_length}")
        return
    with ray_cluster(run):
        demand.check(alive_nodes())
        run = prepare_inputs(run, TrainingConsole())
        results = make_tuner(run).fit()
    print(results.get_dataframe()[COLUMNS].to_string(index=False))
    if results.num_errors:
        raise typer.Exit(1)


if __name__ == "__main__":
    try:
        typer.run(main)
    except (ConfigError, DataError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except RunStoppedError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
