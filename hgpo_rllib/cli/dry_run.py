"""`hgpo train --dry-run`: the settings as YAML, and tables of the resources they need."""

from itertools import groupby

import typer
import yaml
from rich.console import Console
from rich.table import Table

from hgpo_rllib.config import RunConfig
from hgpo_rllib.run import estimate, flops
from hgpo_rllib.run.inputs import check_files
from hgpo_rllib.run.model_size import ModelSize, find_size

WIDTH = 100  # if the output is not a terminal


def print_dry_run(config: RunConfig) -> None:
    """Print settings to standard output as YAML, and tables to standard error.

    Raises:
        ConfigError, DataError: a model, a template, data or options are invalid.
    """
    check_files(config)
    model = find_size(config)
    typer.echo(yaml.safe_dump(config.model_dump(), sort_keys=False), nl=False)
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(resource_table(config))
    if model is None:
        console.print(
            f"memory: unknown; {config.model.model_path} is neither a local checkpoint of a "
            "decoder like Llama nor one of the names in hgpo_rllib/run/model_size.py",
            soft_wrap=True,
        )
        return
    console.print(memory_table(config, model))
    for line in memory_notes(config, model):
        console.print(line, soft_wrap=True)
    console.print(work_table(config, model))
    for line in work_notes(config):
        console.print(line, soft_wrap=True)


def resource_table(config: RunConfig) -> Table:
    """Return the resources that the run requests from Ray."""
    table = _table("Resources requested from Ray", "process", "processes", "CPUs each", "GPUs each")
    rows = estimate.resources(config)
    for row in rows:
        table.add_row(row.process, f"{row.count}", f"{row.cpus:g}", f"{row.gpus:g}")
    cpus = sum(row.count * row.cpus for row in rows)
    gpus = sum(row.count * row.gpus for row in rows)
    table.add_section()
    table.add_row("total", "", f"{cpus:g}", f"{gpus:g}")
    return table


def memory_table(config: RunConfig, model: ModelSize) -> Table:
    """Return the estimated memory of one process of each kind."""
    name = config.model.model_path or "the pocket model"
    title = f"Memory, estimated: {name}, {model.parameters:,} parameters"
    table = _table(title, "process", "where", "what", "GiB")
    table.columns[1].justify = table.columns[2].justify = "left"
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
    if server.replica_gpus:
        size = _gib(estimate.smallest_gpu(config, model))
        notes.append(
            f"A replica takes {server.memory_utilization:.0%} of its GPU, of any size. "
            f"One of {size} GiB holds all sequences at full length; with less, requests wait."
        )
    return notes


def work_table(config: RunConfig, model: ModelSize) -> Table:
    """Return tokens, FLOP and seconds of an iteration, by the length of turns."""
    full = flops.full_turn(config)
    typical = flops.TYPICAL.get(config.agent.prompt)
    columns = {f"turns of {full.tokens:,} tokens": flops.work(config, model, full)}
    if typical is not None and typical.tokens < full.tokens:
        name = f"typical: {typical.tokens:,} tokens"
        columns[name] = flops.work(config, model, typical)
    works = columns.values()
    table = _table("Work of an iteration, estimated", "", *columns)
    table.add_row("turns", *(f"{work.turns:,}" for work in works))
    table.add_row("tokens in prompts", *(_short(work.prompt_tokens) for work in works))
    table.add_row("tokens sampled", *(_short(work.response_tokens) for work in works))
    table.add_row("tokens trained", *(_short(work.trained_tokens) for work in works))
    table.add_row("FLOP of sampling", *(f"{work.sampling:.2g}" for work in works))
    table.add_row("FLOP of the update", *(f"{work.update:.2g}" for work in works))
    for gpu, peak in flops.PEAK_FLOPS.items():
        times = [flops.seconds(config, work, peak) for work in works]
        if None not in times:
            table.add_row(f"seconds on {gpu}", *(f"{time:,.0f}" for time in times))
    return table


def work_notes(config: RunConfig) -> list[str]:
    """Return notes on the table, one line each; none without GPUs."""
    if not config.cluster.learner_gpus:
        return []
    notes = [
        f"Seconds are of learners and replicas at {flops.USED:.0%} of the peak in bfloat16. "
        "Iterations take longer: memory limits decoding more, and environments, evaluations and "
        "weight updates are not counted."
    ]
    paper = flops.PAPER.get((config.agent.prompt, str(config.model.model_path)))
    return notes if paper is None else [*notes, f"The paper's iterations took {paper}."]


def _short(number: int) -> str:
    return f"{number / 1e6:,.1f} M" if number >= 1e6 else f"{number:,}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _gib(size: int) -> str:
    """Format bytes in GiB with one decimal, or two digits below 1 GiB."""
    return f"{size / 2**30:.2g}" if size < 2**30 else f"{size / 2**30:.1f}"
