"""`hgpo train --dry-run`: the settings as YAML, and tables of the resources they need."""

import sys
from itertools import groupby

import typer
import yaml
from rich.table import Table

from hgpo_rllib.config import RunConfig
from hgpo_rllib.placement import Amounts, env_runner_resources, learner_resources, replica_resources
from hgpo_rllib.reporting.console import TrainingConsole, make_table
from hgpo_rllib.run import estimate
from hgpo_rllib.run.inputs import check_files
from hgpo_rllib.run.model_size import ModelSize, find_size


def print_dry_run(config: RunConfig) -> None:
    """Print settings to standard output as YAML, and tables to standard error.

    Raises:
        ConfigError, DataError: a model, a template, data or options are invalid.
    """
    check_files(config)
    model = find_size(config)
    typer.echo(yaml.safe_dump(config.model_dump(), sort_keys=False), nl=False)
    console = TrainingConsole(sys.stderr).console
    console.print(resource_table(config))
    if model is None:
        console.print(
            f"memory: unknown; {config.model.model_path} is neither a local checkpoint of a "
            "decoder like Llama nor one of the names in hgpo_rllib/run/model_size.py",
            soft_wrap=True,
        )
        return
    console.print(memory_table(config, model))
    for note in memory_notes(config, model):
        console.print(note, soft_wrap=True)
    console.print(work_table(config, model))
    if config.cluster.learner_gpus and config.policy_server.replica_gpus:
        console.print(
            f"Seconds assume that learners and replicas reach {estimate.MFU:.0%} of the bfloat16 "
            "peak. Iterations take longer: memory limits decoding more, and environments, "
            "evaluations and weight updates are not counted.",
            soft_wrap=True,
        )


def resource_table(config: RunConfig) -> Table:
    """Return the resources that the run requests from Ray.

    Environments, rollouts and, without learner processes, the learner run in the main process,
    which reserves no CPU (under Tune it is an actor with one CPU). Serve's controller and Ray's own
    processes reserve nothing.
    """
    cluster, server = config.cluster, config.policy_server
    kinds: list[tuple[str, int, Amounts]] = [
        ("main process" if cluster.num_learners else estimate.MAIN, 1, {}),
        ("env runner", cluster.num_env_runners, env_runner_resources(cluster)),
        (estimate.LEARNER, cluster.num_learners, learner_resources(cluster, server)),
        (estimate.REPLICA, server.num_replicas, replica_resources(server)),
    ]
    rows, total = [], dict.fromkeys(("CPU", "GPU", *server.replica_resources), 0.0)
    for process, count, amounts in kinds:
        each = {name: amounts.get(name, 0.0) for name in total}
        total = {name: total[name] + count * amount for name, amount in each.items()}
        if count:
            rows.append(_resources(process, f"{count}", each))
    return make_table([*rows, _resources("total", "", total)], "Resources requested from Ray")


def _resources(process: str, count: str, amounts: Amounts) -> dict[str, str]:
    each = {f"{name}s each": f"{amount:g}" for name, amount in amounts.items()}
    return {"process": process, "processes": count, **each}


def memory_table(config: RunConfig, model: ModelSize) -> Table:
    """Return the estimated memory of one process of each kind."""
    name = config.model.model_path or "the pocket model"
    title = f"Memory, estimated: {name}, {model.parameters:,} parameters"
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("process", "where", "what", "GiB"):
        table.add_column(column, justify="right" if column == "GiB" else "left")
    parts = estimate.memory(config, model)
    for (process, where), group in groupby(parts, lambda item: (item.process, item.where)):
        items = list(group)
        for item in items:
            table.add_row(process, where, item.what, _gib(item.size))
        if len(items) > 1:
            table.add_row(process, where, "sum", _gib(sum(item.size for item in items)))
        table.add_section()
    return table


def memory_notes(config: RunConfig, model: ModelSize) -> list[str]:
    """Return notes on the table, one line each."""
    notes = ["Add one to three GiB per process for torch, vLLM, Ray, CUDA and the games."]
    server = config.policy_server
    if sizes := estimate.gpu_sizes(config, model):
        listed = ", ".join(_gib(size) for size in sizes)
        notes.append(f"GiB that each GPU needs, with 2 for each process on it: {listed}.")
    if server.replica_gpus:
        size = _gib(estimate.smallest_gpu(config, model))
        notes.append(
            f"A replica takes {server.memory_utilization:.0%} of its GPU, of any size. "
            f"One of {size} GiB holds all sequences at full length; with less, requests wait."
        )
    return notes


def work_table(config: RunConfig, model: ModelSize) -> Table:
    """Return tokens, FLOP and seconds of an iteration, by the length of turns or conversations."""
    full = estimate.full_sequence(config)
    typical = estimate.TYPICAL.get(config.agent.prompt)
    what = "turns" if full.turns == 1 else "conversations"
    columns = {f"{what} of {full.tokens:,} tokens": estimate.work(config, model, full)}
    if typical is not None and full.turns == 1 and typical.tokens < full.tokens:
        name = f"typical: {typical.tokens:,} tokens"
        columns[name] = estimate.work(config, model, typical)
    names = next(iter(columns.values()))
    rows = [
        {"": name} | {heading: _short(name, work[name]) for heading, work in columns.items()}
        for name in names
    ]
    return make_table(rows, "Work of an iteration, estimated")


def _short(name: str, number: float) -> str:
    if "FLOP" in name:
        return f"{number:.2g}"
    return f"{number / 1e6:,.1f} M" if number >= 1e6 else f"{number:,.0f}"


def _gib(size: float) -> str:
    """Format bytes in GiB with one decimal, or two digits below 1 GiB."""
    return f"{size / 2**30:.2g}" if size < 2**30 else f"{size / 2**30:.1f}"
