"""`hgpo compare`: compare two evaluations of the same games."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hgpo_rllib.config import ConfigError
from hgpo_rllib.evaluation.show import percent
from hgpo_rllib.evaluation.statistics import PairedTest, compare_means
from hgpo_rllib.evaluation.summary import MEASURES
from hgpo_rllib.reporting.numbers import points
from hgpo_rllib.results import ALL, Evaluation

SAME = ("id", "split", "max_steps", "options", "data_sha256")
"""Environment entries of the protocol that must be equal for the games to be the same."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of evaluation B with evaluation A."""

    games: int
    tests: dict[str, dict[str, PairedTest]]
    """Tests by measure (`MEASURES`), then by task family; ``all`` covers all families."""
    means: dict[str, tuple[float, float]]
    """Means of A and B over the games, by measure."""
    notes: list[str]
    """Differences between the protocols to report."""

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self)


def compare(a: Evaluation, b: Evaluation, common: bool = False) -> Comparison:
    """Test B against A on their common games.

    Args:
        a: an evaluation.
        b: another evaluation.
        common: compare the common games if the sets of games differ.

    Raises:
        ConfigError: the games differ.
    """
    check_environment(a, b)
    means_a, means_b = by_game(a.episodes), by_game(b.episodes)
    games = means_a.merge(
        means_b[[*MEASURES]], left_index=True, right_index=True, suffixes=("_a", "_b")
    )
    different = len(means_a) + len(means_b) - 2 * len(games)
    if games.empty:
        raise ConfigError(f"{a.path} and {b.path} have no game in common")
    if different and not common:
        raise ConfigError(
            f"{a.path} and {b.path} have {len(games)} games in common and {different} that only "
            "one of them has: evaluate the same games, or add --common"
        )
    families = {ALL: games} | {str(name): part for name, part in games.groupby("task_type")}
    tests = {
        measure: {
            name: compare_means(part[f"{measure}_a"], part[f"{measure}_b"])
            for name, part in families.items()
        }
        for measure in MEASURES
    }
    means = {m: (float(games[f"{m}_a"].mean()), float(games[f"{m}_b"].mean())) for m in MEASURES}
    return Comparison(len(games), tests, means, notes(a, b, different))


def check_environment(a: Evaluation, b: Evaluation) -> None:
    """Raise ConfigError if games with the same name are different games."""
    for name in SAME:
        left, right = a.protocol["env"][name], b.protocol["env"][name]
        if left != right:
            raise ConfigError(
                f"{a.path} and {b.path} are not of the same games: env.{name} is {_short(left)} "
                f"and {_short(right)}"
            )


def by_game(episodes: pd.DataFrame) -> pd.DataFrame:
    """Return the task family and the mean measures of each game."""
    return episodes.groupby("game").agg(
        task_type=("task_type", "first"), success_rate=("success", "mean"), score=("score", "mean")
    )


def notes(a: Evaluation, b: Evaluation, different: int) -> list[str]:
    """Describe other differences between the protocols."""
    found = [f"{different} games that only one of them has are left out"] if different else []
    for name in ("protocol", "seeds", "versions"):
        if a.protocol[name] != b.protocol[name]:
            found.append(
                f"{name} differ: {_short(a.protocol[name])} and {_short(b.protocol[name])}"
            )
    return found


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def verdict(comparison: Comparison) -> str:
    """Summarize a comparison in one line."""
    test = comparison.tests["success_rate"][ALL]
    a, b = comparison.means["success_rate"]
    difference = test.difference
    interval = (
        "interval unknown"
        if difference.low is None or difference.high is None
        else f"95 %: {points(difference.low)} … {points(difference.high)}"
    )
    return (
        f"B - A = {points(difference.mean)} points of success ({percent(a)} → {percent(b)} %, "
        f"{interval}), p = {test.p_value:.4g}, {comparison.games} games"
    )


def show_comparison(a: Evaluation, b: Evaluation, comparison: Comparison, console: Console) -> None:
    """Print the verdict, a table by task family for each measure, and the notes."""
    console.print(Text(f"A: {a.path}, {a.protocol['agent']['name']}"), soft_wrap=True)
    console.print(Text(f"B: {b.path}, {b.protocol['agent']['name']}"), soft_wrap=True)
    console.print(Text(verdict(comparison), "bold"), soft_wrap=True)
    measures = list(MEASURES)
    if comparison.tests["score"] == comparison.tests["success_rate"]:
        measures.remove("score")
    for measure in measures:
        console.print(_table(measure, comparison))
    for note in comparison.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _table(measure: str, comparison: Comparison) -> Table:
    title = f"B - A, {measure.replace('_rate', '')}, points"
    table = Table(title=Text(title, "bold"), title_justify="left")
    table.add_column("tasks")
    for heading in ("difference", "95 %", "p", "B better", "B worse", "equal"):
        table.add_column(heading, justify="right")
    for family, test in sorted(comparison.tests[measure].items(), key=lambda item: item[0] == ALL):
        if family == ALL:
            table.add_section()
        found = test.difference
        error = math.nan if found.standard_error is None else found.standard_error
        known = found.low is not None and found.high is not None
        table.add_row(
            family,
            points(found.mean, error),
            f"{points(found.low or 0)} … {points(found.high or 0)}" if known else "n/a",
            f"{test.p_value:.4g}",
            *(str(count) for count in (test.better, test.worse, test.equal)),
        )
    return table
