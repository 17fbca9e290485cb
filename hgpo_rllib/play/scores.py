"""Format a WebShop score as table rows: what was met, and its weight."""

from collections.abc import Mapping
from typing import NamedTuple

from env_wrappers.webshop.goals import NO_LIMIT
from env_wrappers.webshop.records import Goal
from env_wrappers.webshop.reward import Score

HEADINGS = ("part", "met", "weight", "asked for")


class ScoreRow(NamedTuple):
    """One component of a score, formatted as text."""

    part: str
    met: str
    weight: str
    asked: str


def score_rows(score: Score, goal: Goal, price: float) -> list[ScoreRow]:
    """Return the rows of a score, components first.

    Args:
        score: the score of the purchase.
        goal: the goal.
        price: price paid, in dollars.
    """
    rows = [_row("attributes", score.r_att, score.w_att, ", ".join(goal.attributes) or "none")]
    if score.r_option is not None:
        rows.append(_row("options", score.r_option, score.w_option, _options(goal)))
    rows.append(_row("price", float(score.r_price), score.w_price, _price(goal, price)))
    rows.append(ScoreRow("kind of product", f"{score.r_type:g}", "× all", _kind(score)))
    rows.append(
        ScoreRow("score", f"{score.reward:.3f}", "", "all of it" if score.reward == 1 else "")
    )
    return rows


def price_limit(goal: Goal) -> str:
    """Format the price limit of a goal."""
    return "no limit" if goal.price_limit == NO_LIMIT else f"at most ${goal.price_limit:.2f}"


def _row(part: str, met: float, weight: float | None, asked: str) -> ScoreRow:
    return ScoreRow(part, f"{met:.0%}", "" if weight is None else f"{weight:.0%}", asked)


def _options(goal: Goal) -> str:
    if isinstance(goal.options, Mapping):
        return ", ".join(f"{name}: {value}" for name, value in goal.options.items())
    return ", ".join(goal.options)


def _price(goal: Goal, price: float) -> str:
    return f"{price_limit(goal)}, this is ${price:.2f}"


def _kind(score: Score) -> str:
    signs = [f"nouns of the title {score.title_score:.2f} ({score.noun_extractor})"]
    signs += ["same query"] if score.query_match else []
    signs += ["same category"] if score.category_match else []
    return ", ".join(signs)
