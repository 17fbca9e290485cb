"""Scripted shoppers to compare with, and the one whose demonstrations a small model imitates."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from env_wrappers.webshop.shopper import Mistakes, Offer, Shopper


class FirstHit(Shopper):
    """Buys the first product that a search for all words of the wish and its options finds."""

    def _query(self) -> str:
        wish = self._wish
        return " ".join((*wish.words, *wish.options, *wish.options.values()))

    def _suits(self, offer: Offer) -> bool:
        return True

    def _best(self, suitable: list[Offer]) -> Offer:
        return suitable[0]


_HASTY = Mistakes(unread_features=1.0, no_return=1.0)
PLAYERS: Mapping[str, Callable[[str, random.Random], Shopper]] = {
    "first-hit": lambda goal, rng: FirstHit(goal, rng, replace(_HASTY, premature_purchase=1.0)),
    "first-hit-options": lambda goal, rng: FirstHit(goal, rng, _HASTY),
    "careful": Shopper,
    "exhaustive": lambda goal, rng: Shopper(goal, rng, exhaustive=True),
}
"""Shoppers to compare with, by name: the first hit, the first hit with the wanted options, and
`Shopper` without and with `exhaustive`."""


class NoisyShopper(Shopper):
    """A `Shopper` that makes mistakes, which reinforcement learning should remove."""

    def __init__(self, goal: str, rng: random.Random, mistake_rate: float) -> None:
        """Initialize for the instruction `goal`; `mistake_rate` is the probability of each one."""
        super().__init__(goal, rng, Mistakes(*[mistake_rate] * len(fields(Mistakes))))

    def strategy(self) -> str:
        """Decide how to search and whether to read features, for the whole episode; return it."""
        short, skip = (
            self.rng.random() < probability
            for probability in (self.mistakes.short_query, self.mistakes.unread_features)
        )
        self.mistakes = replace(self.mistakes, short_query=short, unread_features=skip)
        return f"search {'one word' if short else 'all words'}, {'buy' if skip else 'look closer'}"

    def perturb(self, admissible: Sequence[str], rng: random.Random) -> str:
        """Return a one-word search if there is a search bar, otherwise any click but "buy now"."""
        clicks = [a for a in admissible if a.startswith("click[") and a != "click[buy now]"]
        if any(a.startswith("search[") for a in admissible):
            return f"search[{rng.choice(self.goal.split())}]"
        return rng.choice(clicks)

    def is_worth_learning(self, info: Mapping[str, Any]) -> bool:
        """Return whether the purchase is of the right kind and price, with half the attributes.

        Purchases of lookalikes are kept: otherwise, the mistakes that lead to them would look
        harmless in the demonstrations.
        """
        score = info["score_details"]
        return bool(score and score["r_type"] == 1 and score["r_att"] >= 0.5 and score["r_price"])
