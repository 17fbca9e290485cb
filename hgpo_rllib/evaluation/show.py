"""Print evaluations and comparisons as tables."""

import math
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hgpo_rllib.evaluation.compare import Comparison
from hgpo_rllib.evaluation.evaluate import EvaluationResult
from hgpo_rllib.evaluation.protocol import HASH_LENGTH
from hgpo_rllib.evaluation.statistics import MEASURES, Estimate, PairedTest
from hgpo_rllib.reporting.console import make_table
from hgpo_rllib.reporting.numbers import MISSING, points
from hgpo_rllib.results import ALL, Evaluation
from hgpo_rllib.results.evaluations import EPISODES


def show_evaluation(finished: EvaluationResult, console: Console) -> None:
    """Print the results and their protocol."""
    summary = finished.summary
    console.print(results_table(summary))
    lines = protocol_lines(summary)
    lost = summary["results"]["all"]["lost"]
    if summary["protocol"]["agent"]["name"] == "oracle" and lost:
        reason = f"their goals are out of its reach, see {EPISODES}"
        lines.insert(0, f"the oracle lost {lost} episodes: {reason}")
    what = f"{finished.played} episodes played" if finished.played else "nothing left to play"
    for line in [*lines, f"{finished.path}: {what}"]:
        console.print(line, soft_wrap=True)


def results_table(summary: dict[str, Any]) -> Table:
    """Return a table with one row per task type and one for all episodes."""
    protocol, results = summary["protocol"], summary["results"]
    env = protocol["env"]
    title = f"{protocol['agent']['name']} on {env['id']} {env['split']}, {protocol['protocol']}"
    scored = results["all"]["score"] != results["all"]["success_rate"]
    rows = results["by_task_type"] | {ALL: results["all"]}
    return make_table([{"tasks": name} | _cells(row, scored) for name, row in rows.items()], title)


def _cells(row: dict[str, Any], scored: bool) -> dict[str, str]:
    """Return the cells by heading, without the score unless `scored`."""
    success = row["success_rate"]
    low, high = success["low"], success["high"]
    return {
        "games": str(row["games"]),
        "success %": _with_error(success),
        "95 %": MISSING if low is None else f"{100 * low:.1f} … {100 * high:.1f}",
        **({"score %": _with_error(row["score"])} if scored else {}),
        "steps": f"{row['steps']:.1f}",
        "invalid %": f"{100 * row['invalid_rate']:.1f}",
        "inadm. %": f"{100 * row['inadmissible_rate']:.1f}",
        "tokens": f"{row['prompt_tokens']:.0f}+{row['response_tokens']:.0f}",
    }


def _with_error(estimate: dict[str, Any]) -> str:
    error = estimate["standard_error"]
    return f"{100 * estimate['mean']:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def protocol_lines(summary: dict[str, Any]) -> list[str]:
    """Summarize the protocol, which summary.json holds in full."""
    protocol = summary["protocol"]
    agent, model, games = protocol["agent"], protocol["model"], protocol["games"]
    lines = [
        f"{protocol['episodes']} episodes of {games['different']} games (of {games['in_split']}), "
        f"seeds {', '.join(map(str, protocol['seeds']))}, "
        f"at most {protocol['env']['max_steps']} steps"
    ]
    if model is not None:
        lines.append(
            f"prompt {agent['templates']['prompt']['name']}, memory {agent['memory_length']}, "
            f"temperature {agent['temperature']:g}, at most {agent['max_response_tokens']} tokens "
            f"a response, trials {agent['trials']}"
        )
        if model["served_by"] == "openai":
            where = f"{model['name']} at {model['address']} (its weights are not known)"
        else:
            hashes = (f"{name} {h[:HASH_LENGTH]}" for name, h in model["weights_sha256"].items())
            where = f"{', '.join(hashes)} in {model['dtype']}, on {model['device']}"
        lines.append(f"model {where}")
    lines.append(
        f"protocol {summary['protocol_sha256'][:HASH_LENGTH]}, "
        f"games {games['sha256'][:HASH_LENGTH]}, "
        f"data {(protocol['env']['data_sha256'] or 'unknown')[:HASH_LENGTH]}"
    )
    return lines


def show_comparison(a: Evaluation, b: Evaluation, comparison: Comparison, console: Console) -> None:
    """Print the verdict, a table by task type for each measure, and the notes."""
    for name, evaluation in (("A", a), ("B", b)):
        line = f"{name}: {evaluation.path}, {evaluation.protocol['agent']['name']}"
        console.print(line, soft_wrap=True)
    console.print(Text(verdict(comparison), "bold"), soft_wrap=True)
    for measure in MEASURES:
        tests = comparison.tests[measure]
        if measure == "score" and tests == comparison.tests["success_rate"]:
            continue
        rows = [_test_row(name, test) for name, test in tests.items()]
        console.print(make_table(rows, f"B - A, {measure.removesuffix('_rate')}, points"))
    for note in comparison.notes:
        console.print(f"note: {note}", soft_wrap=True)


def verdict(comparison: Comparison) -> str:
    """Summarize a comparison in one line."""
    test = comparison.tests["success_rate"][ALL]
    a, b = comparison.means["success_rate"]
    return (
        f"B - A = {points(test.difference.mean)} points of success ({100 * a:.1f} → "
        f"{100 * b:.1f} %, 95 %: {_interval(test.difference)}), p = {test.p_value:.4g}, "
        f"{comparison.games} games"
    )


def _interval(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return MISSING
    return f"{points(found.low)} … {points(found.high)}"


def _test_row(task_type: str, test: PairedTest) -> dict[str, str]:
    error = test.difference.standard_error
    return {
        "tasks": task_type,
        "difference": points(test.difference.mean, math.nan if error is None else error),
        "95 %": _interval(test.difference),
        "p": f"{test.p_value:.4g}",
        "B better": str(test.better),
        "B worse": str(test.worse),
        "equal": str(test.equal),
    }
