"""`hgpo bench rollout` and `hgpo bench learner`."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hgpo_rllib.cli.bench_output import JsonOption, make_table, print_json, print_table, with_median


def rollout(
    config: Annotated[Path, typer.Argument(help="run file: model, prompts, environment")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="section.key=value, in any number")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="requests at the same time")] = 64,
    prompts: Annotated[int, typer.Option(min=1, help="of a turn")] = 1024,
    repeats: Annotated[int, typer.Option(min=1, help="turns of each side")] = 5,
    lock_step: Annotated[
        bool, typer.Option(help="also whole episodes, against a driver in lock-step")
    ] = True,
    updates: Annotated[int, typer.Option(min=0, help="of the weights, to time")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Compare policy server and rollouts with vLLM alone and with lock-step; time new weights."""
    from hgpo_rllib.bench.rollout import RolloutWorkload, bench_rollout
    from hgpo_rllib.bench.weights import bench_weights
    from hgpo_rllib.config import load_config
    from hgpo_rllib.reporting.console import TrainingConsole
    from hgpo_rllib.run.cluster import ray_cluster
    from hgpo_rllib.run.trainer import PhaseTimes, prepare_inputs

    run = load_config(config, overrides or [])
    console = TrainingConsole(sys.stderr)
    run = prepare_inputs(run, console, PhaseTimes())
    with ray_cluster(run.without_learners()):
        with console.stage("rolling out, in turns with the other sides"):
            requests, episodes = bench_rollout(
                RolloutWorkload(run, concurrency, prompts, repeats, lock_step)
            )
        with console.stage("updating weights"):
            weights = bench_weights(run.model, run.policy_server, updates) if updates else []
    if as_json:
        print_json(
            {
                "requests": [asdict(row) | {"ratio": row.ratio} for row in requests],
                "episodes": [asdict(row) | {"ratio": row.ratio} for row in episodes],
                "updates": [asdict(row) for row in weights],
            }
        )
        return
    for table in rollout_tables(requests, episodes, weights):
        print_table(table)


def rollout_tables(requests: list[Any], episodes: list[Any], updates: list[Any]) -> list[Table]:
    first = requests[0]
    served = make_table(
        f"{first.prompts} prompts, {first.concurrency} at a time: vLLM alone and through Serve",
        "turn|tokens|vLLM tokens/s|Serve tokens/s|ratio|added, ms/request|latency, ms|of it engine",
    )
    for name, row in with_median(requests, "ratio"):
        served.add_row(
            name,
            f"{row.tokens:,}",
            f"{row.bare_tokens / row.bare_seconds:,.0f}",
            f"{row.tokens / row.seconds:,.0f}",
            f"{row.ratio:.2f}",
            f"{row.overhead_ms:.2f}",
            f"{1000 * row.latency_s:.0f}",
            f"{1000 * row.engine_s:.0f}",
        )
    tables = [served]
    if episodes:
        first = episodes[0]
        paces = make_table(
            f"{first.episodes} episodes: members at their own pace, and in lock-step",
            "turn|steps|longest|steps/s|lock-step steps/s|ratio|request, ms|of it engine|step, ms",
        )
        for name, row in with_median(episodes, "ratio"):
            paces.add_row(
                name,
                f"{row.steps:,}",
                str(row.longest),
                f"{row.steps / row.seconds:,.0f}",
                f"{row.lock_steps / row.lock_seconds:,.0f}",
                f"{row.ratio:.2f}",
                f"{1000 * row.request_s:.0f}",
                f"{1000 * row.engine_s:.0f}",
                f"{1000 * row.env_s:.1f}",
            )
        tables.append(paces)
    if updates:
        fresh = make_table("New weights", "turn|published, s|first token, s|log-probability gap")
        for name, row in with_median(updates, "first_token_seconds"):
            fresh.add_row(
                name,
                f"{row.publish_seconds:.2f}",
                f"{row.first_token_seconds:.2f}",
                f"{row.logp_gap:.0e}",
            )
        tables.append(fresh)
    return tables


def learner(
    config: Annotated[Path, typer.Argument(help="run file: model, prompts, objective")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="section.key=value, in any number")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="of the batch")] = 512,
    repeats: Annotated[int, typer.Option(min=1, help="updates of each side")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Compare the learner's update with a bare PyTorch loop on the same batch: speed, memory."""
    from hgpo_rllib.bench.learner import bench_learner
    from hgpo_rllib.config import load_config
    from hgpo_rllib.reporting.console import TrainingConsole
    from hgpo_rllib.run.trainer import PhaseTimes, prepare_inputs

    console = TrainingConsole(sys.stderr)
    run = prepare_inputs(load_config(config, overrides or []), console, PhaseTimes())
    with console.stage("updating, in turns with the bare loop"):
        result = bench_learner(run, steps, repeats)
    if as_json:
        turns = [asdict(turn) | {"ratio": turn.ratio} for turn in result.turns]
        print_json(asdict(result) | {"turns": turns, "peak_share": result.peak_share})
        return
    table = make_table(
        f"One update of {result.steps} steps", "turn|tokens|bare tokens/s|learner tokens/s|ratio"
    )
    for name, row in with_median(result.turns, "ratio"):
        table.add_row(
            name,
            f"{row.tokens:,}",
            f"{row.tokens / row.bare_seconds:,.0f}",
            f"{row.tokens / row.seconds:,.0f}",
            f"{row.ratio:.2f}",
        )
    table.caption = (
        f"peak memory: bare {result.bare_peak_mib:,.0f} MiB, learner {result.peak_mib:,.0f} MiB "
        f"({result.peak_mib / result.bare_peak_mib:.2f}); padding {result.padding:.1%}; "
        f"parameters differ by {result.parameter_gap:.0e} at most; "
        f"learner at {result.peak_share:.0%} of the {result.peak_flops / 1e9:,.0f} GFLOP/s that "
        "matrix products alone reach"
    )
    table.caption_justify = "left"
    print_table(table)
