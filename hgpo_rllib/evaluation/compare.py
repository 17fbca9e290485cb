"""`hgpo compare`: two evaluations of the same games."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hgpo_rllib.config import ConfigError
from hgpo_rllib.evaluation.records import Record
from hgpo_rllib.evaluation.results import Evaluation
from hgpo_rllib.evaluation.show import percent
from hgpo_rllib.evaluation.statistics import PairedTest, compare_means
from hgpo_rllib.evaluation.summary import MEASURES

SAME = ("id", "split", "max_steps", "options", "data_sha256")
"""Of the environment: without these the games would not be the same games."""
ALL = "all"


@dataclass(frozen=True)
class Comparison:
    """B against A."""

    games: int
    tests: dict[str, dict[str, PairedTest]]
    """By measure (`MEASURES`), then by task family; ``all`` is over all of them."""
    means: dict[str, tuple[float, float]]
    """Of A and B over the games, by measure."""
    notes: list[str]
    """Differences of the protocols that a reader should know of."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def compare(a: Evaluation, b: Evaluation, common: bool = False) -> Comparison:
    """Test B against A on the games of both.

    Args:
        a: an evaluation.
        b: another one.
        common: take the games that both have where they do not have the same.

    Raises:
        ConfigError: their games differ.
    """
    check_environment(a, b)
    by_game_a, by_game_b = by_game(a.episodes), by_game(b.episodes)
    shared = sorted(by_game_a.keys() & by_game_b.keys())
    different = len(by_game_a.keys() ^ by_game_b.keys())
    if not shared:
        raise ConfigError(f"{a.path} and {b.path} have no game in common")
    if different and not common:
        raise ConfigError(
            f"{a.path} and {b.path} have {len(shared)} games in common and {different} that only "
            "one of them has: evaluate the same games, or add --common"
        )
    families = {game: by_game_a[game][0]["task_type"] for game in shared}
    tests: dict[str, dict[str, PairedTest]] = {}
    means: dict[str, tuple[float, float]] = {}
    for measure in MEASURES:
        values_a, values_b = (
            {game: mean_of(by_game[game], measure) for game in shared}
            for by_game in (by_game_a, by_game_b)
        )
        means[measure] = float(np.mean([*values_a.values()])), float(np.mean([*values_b.values()]))
        tests[measure] = {ALL: compare_means(values_a, values_b)}
        for family in sorted(set(families.values())):
            chosen = [game for game in shared if families[game] == family]
            tests[measure][family] = compare_means(
                {game: values_a[game] for game in chosen}, {game: values_b[game] for game in chosen}
            )
    return Comparison(len(shared), tests, means, notes(a, b, different))


def check_environment(a: Evaluation, b: Evaluation) -> None:
    """Raise ConfigError where games of one name are not the same game."""
    for name in SAME:
        left, right = a.protocol["env"][name], b.protocol["env"][name]
        if left != right:
            raise ConfigError(
                f"{a.path} and {b.path} are not of the same games: env.{name} is {_short(left)} "
                f"and {_short(right)}"
            )


def by_game(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Episodes by the name of their game."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[record["game"]].append(record)
    return found


def mean_of(records: Sequence[Record], measure: str) -> float:
    """Of the episodes of one game."""
    key = "success" if measure == "success_rate" else measure
    return float(np.mean([float(record[key]) for record in records]))


def notes(a: Evaluation, b: Evaluation, different: int) -> list[str]:
    """What else differs between the protocols."""
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
    """One line."""
    test = comparison.tests["success_rate"][ALL]
    a, b = comparison.means["success_rate"]
    difference = test.difference
    interval = (
        "interval unknown"
        if difference.low is None or difference.high is None
        else f"95 %: {_signed(difference.low)} … {_signed(difference.high)}"
    )
    return (
        f"B - A = {_signed(difference.mean)} points of success ({percent(a)} → {percent(b)} %, "
        f"{interval}), p = {test.p_value:.4g}, {comparison.games} games"
    )


def show_comparison(a: Evaluation, b: Evaluation, comparison: Comparison, console: Console) -> None:
    """Print the verdict, a table by family, and the notes."""
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
        error = "" if found.standard_error is None else f" ± {percent(found.standard_error)}"
        known = found.low is not None and found.high is not None
        table.add_row(
            family,
            f"{_signed(found.mean)}{error}",
            f"{_signed(found.low or 0)} … {_signed(found.high or 0)}" if known else "n/a",
            f"{test.p_value:.4g}",
            *(str(count) for count in (test.better, test.worse, test.equal)),
        )
    return table


def _signed(value: float) -> str:
    return f"{100 * value:+.1f}"
