"""`hgpo compare`: compare two evaluations of the same games."""

import re
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hgpo_rllib.environments.checks import default_options
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.statistics import MEASURES, PairedTest, compare_means
from hgpo_rllib.results import ALL, Evaluation

SAME = ("id", "split", "max_steps", "options", "data_sha256")
"""Environment entries of the protocol that must be equal for the games to be the same."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of evaluation B with evaluation A."""

    games: int
    tests: dict[str, dict[str, PairedTest]]
    """Tests by measure (`MEASURES`), then by task type; ``all`` covers all task types."""
    means: dict[str, tuple[float, float]]
    """Means of A and B over the games, by measure."""
    notes: list[str]
    """Differences between the protocols to report."""


def compare(
    a: Evaluation, b: Evaluation, common: bool = False, cluster: str | None = None
) -> Comparison:
    """Test B against A on their common games.

    Args:
        a: evaluation A.
        b: evaluation B.
        common: compare the games that both have, even if they differ in others.
        cluster: regular expression. Games in whose names it matches the same text are correlated,
            and are resampled together. None: games are independent.

    Raises:
        ConfigError: the games differ, which `common` allows if they have some in common; or
            `cluster` is not a regular expression, or does not match a game.
    """
    for name in SAME:
        left, right = a.protocol["env"][name], b.protocol["env"][name]
        if name == "options":
            # One may name an option at its default, which the other leaves out.
            known = default_options(a.protocol["env"]["id"])
            left, right = known | left, known | right
            left, right = _without(left, right), _without(right, left)
        if left != right:
            raise ConfigError(
                f"{a.path} and {b.path} are not of the same games: env.{name} is {_short(left)} "
                f"and {_short(right)}"
            )
    means_a, means_b = by_game(a.episodes), by_game(b.episodes)
    games = means_a.join(means_b[[*MEASURES]], how="inner", suffixes=("_a", "_b"))
    different = len(means_a) + len(means_b) - 2 * len(games)
    if games.empty:
        raise ConfigError(f"{a.path} and {b.path} have no game in common")
    if different and not common:
        raise ConfigError(
            f"{a.path} and {b.path} have {len(games)} games in common and {different} that only "
            "one of them has: evaluate the same games, or add --common"
        )
    clusters = None if cluster is None else _clusters(games.index, cluster)
    task_types = {str(name): part for name, part in games.groupby("task_type")} | {ALL: games}
    tests = {
        measure: {
            name: compare_means(part[f"{measure}_a"], part[f"{measure}_b"], clusters)
            for name, part in task_types.items()
        }
        for measure in MEASURES
    }
    notes = [f"{different} games that only one of them has are left out"] if different else []
    if clusters is not None:
        notes.append(
            f"errors, intervals and p-values are of {clusters.nunique()} clusters of games"
        )
    for name in ("protocol", "seeds", "versions"):
        left, right = a.protocol[name], b.protocol[name]
        if left != right:
            notes.append(f"{name} differ: {_short(left)} and {_short(right)}")
    left, right = (each.protocol["env"].get("data") for each in (a, b))
    if left != right:
        notes.append(f"data differ, and their games may too: {_short(left)} and {_short(right)}")
    plays = [each.episodes["game"].value_counts().reindex(games.index) for each in (a, b)]
    if (plays[0] != plays[1]).any():
        notes.append(
            "games were not played as often in both: with few games and rare or almost certain "
            "success, p-values are too small"
        )
    means = {m: (float(games[f"{m}_a"].mean()), float(games[f"{m}_b"].mean())) for m in MEASURES}
    return Comparison(len(games), tests, means, notes)


def by_game(episodes: pd.DataFrame) -> pd.DataFrame:
    """Return the task type and the mean measures of each game."""
    return episodes.groupby("game").agg(
        task_type=("task_type", "first"), success_rate=("success", "mean"), score=("score", "mean")
    )


def _clusters(games: pd.Index, pattern: str) -> pd.Series:
    """Return the text that the pattern matches in the name of each game, by game."""
    try:
        matches = {game: re.search(pattern, game) for game in games}
    except re.error as error:
        raise ConfigError(f"--cluster {pattern}: not a regular expression: {error}") from error
    for game, match in matches.items():
        if match is None:
            raise ConfigError(f"--cluster {pattern}: does not match the game {_short(game)}")
    return pd.Series({game: match[0] for game, match in matches.items() if match})


def _without(options: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Return the options that `others` lacks, or has with another value."""
    return {n: value for n, value in options.items() if n not in others or others[n] != value}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
