"""Print an evaluation as tables."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hgpo_rllib.evaluation.evaluate import Finished
from hgpo_rllib.results.evaluations import EPISODES

WIDTH = 116  # if the output is not a terminal
SHORT_HASH = 10


def make_console() -> Console:
    """Return a console on standard output that is wide enough for the tables."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console


def show_evaluation(finished: Finished, console: Console) -> None:
    """Print the results and their protocol."""
    summary = finished.summary
    console.print(results_table(summary))
    lost = summary["results"]["all"]["lost"]
    if summary["protocol"]["agent"]["name"] == "oracle" and lost:
        line = f"the oracle lost {lost} episodes: their goals are out of its reach, see {EPISODES}"
        console.print(Text(line), soft_wrap=True)
    for line in protocol_lines(summary):
        console.print(Text(line), soft_wrap=True)
    what = f"{finished.played} episodes played" if finished.played else "nothing left to play"
    console.print(Text(f"{finished.path}: {what}"), soft_wrap=True)


def results_table(summary: dict[str, Any]) -> Table:
    """Return a table with one row per task family and one for all episodes."""
    protocol, results = summary["protocol"], summary["results"]
    env = protocol["env"]
    title = f"{protocol['agent']['name']} on {env['id']} {env['split']}, {protocol['protocol']}"
    table = Table(title=Text(title, "bold"), title_justify="left")
    table.add_column("tasks", overflow="fold")
    scored = results["all"]["score"] != results["all"]["success_rate"]
    for heading in _cells(results["all"], scored):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in results["by_task_type"].items():
        table.add_row(name, *_cells(row, scored).values())
    table.add_section()
    table.add_row("all", *_cells(results["all"], scored).values())
    return table


def protocol_lines(summary: dict[str, Any]) -> list[str]:
    """Summarize the protocol, which summary.json holds in full."""
    protocol = summary["protocol"]
    agent, model = protocol["agent"], protocol["model"]
    seeds = ", ".join(map(str, protocol["seeds"]))
    lines = [
        f"{protocol['episodes']} episodes of {protocol['games']['different']} games "
        f"(of {protocol['games']['in_split']}), seeds {seeds}, "
        f"at most {protocol['env']['max_steps']} steps"
    ]
    if model is not None:
        lines.append(
            f"prompt {agent['templates']['prompt']['name']}, memory {agent['memory_length']}, "
            f"temperature {agent['temperature']:g}, at most {agent['max_response_tokens']} tokens "
            f"a response, trials {agent['trials']}"
        )
        lines.append(f"model {describe_model(model)}")
    lines.append(
        f"protocol {summary['protocol_sha256'][:SHORT_HASH]}, "
        f"games {protocol['games']['sha256'][:SHORT_HASH]}, "
        f"data {(protocol['env']['data_sha256'] or 'unknown')[:SHORT_HASH]}"
    )
    return lines


def describe_model(model: dict[str, Any]) -> str:
    """Describe the model in a few words."""
    if model["served_by"] == "openai":
        return f"{model['name']} at {model['address']} (its weights are not known)"
    hashes = ", ".join(f"{n} {h[:SHORT_HASH]}" for n, h in model["weights_sha256"].items())
    return f"{hashes} in {model['dtype']}, on {model['device']}"


def _cells(row: dict[str, Any], scored: bool) -> dict[str, str]:
    """Return the cells by heading, without the score unless `scored`."""
    success = row["success_rate"]
    return {
        "games": str(row["games"]),
        "success %": with_error(success),
        "95 %": interval(success),
        **({"score %": with_error(row["score"])} if scored else {}),
        "steps": f"{row['steps']:.1f}",
        "invalid %": percent(row["invalid_rate"]),
        "inadm. %": percent(row["inadmissible_rate"]),
        "tokens": f"{row['prompt_tokens']:.0f}+{row['response_tokens']:.0f}",
    }


def percent(value: float) -> str:
    """Format a share in percent, without the sign."""
    return f"{100 * value:.1f}"


def with_error(estimate: dict[str, Any]) -> str:
    """Format mean and standard error in percent, as ``12.3 ± 4.5``."""
    error = estimate["standard_error"]
    return percent(estimate["mean"]) + ("" if error is None else f" ± {percent(error)}")


def interval(estimate: dict[str, Any]) -> str:
    """Format the interval in percent, as ``3.4 … 21.0``."""
    if estimate["low"] is None:
        return "n/a"
    return f"{percent(estimate['low'])} … {percent(estimate['high'])}"
