"""Scripted shoppers to compare with, and the one whose demonstrations a small model imitates."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from env_wrappers.webshop.shopper import Habits, Offer, Shopper, Wish

BAD_HABITS = Habits(
    short_query=0.1,
    random_result=0.2,
    unread_features=0.5,
    no_return=0.5,
    premature_purchase=0.2,
)
"""Habits of the noisy shopper, which reinforcement learning should remove."""


class Player:
    """A `Shopper` with a fixed instruction."""

    def __init__(self, goal: str, shopper: Shopper):
        """Initialize for the instruction `goal`."""
        self._goal = goal
        self._shopper = shopper

    def act(self, observation: str, admissible: Sequence[str], last: str | None) -> tuple[str, str]:
        """Return thought and action."""
        return self._shopper.act(self._goal, observation, admissible, last)


class FirstHit(Shopper):
    """Buys the first product that a search for all words of the wish and its options finds."""

    def _query(self, wish: Wish) -> str:
        return " ".join((*wish.words, *wish.options, *wish.options.values()))

    def _suits(self, offer: Offer, wish: Wish) -> bool:
        return True

    def _best(self, suitable: list[Offer], wish: Wish) -> Offer:
        return suitable[0]


_HASTY = Habits(unread_features=1.0, no_return=1.0)
PLAYERS: Mapping[str, Callable[[random.Random], Shopper]] = {
    "first-hit": lambda rng: FirstHit(rng, replace(_HASTY, premature_purchase=1.0)),
    "first-hit-options": lambda rng: FirstHit(rng, _HASTY),
    "careful": Shopper,
    "exhaustive": lambda rng: Shopper(rng, exhaustive=True),
}
"""Shoppers to compare with, by name: the first hit, the first hit with the wanted options, and
`Shopper` without and with `exhaustive`."""


class NoisyShopper(Player):
    """A `Shopper` with a fixed instruction, bad habits, and perturbed actions."""

    def __init__(self, goal: str, rng: random.Random):
        """Initialize for the instruction `goal`."""
        super().__init__(goal, Shopper(rng, BAD_HABITS))

    def perturb(self, admissible: Sequence[str], rng: random.Random) -> str:
        """Return a one-word search if there is a search bar, otherwise any click but "buy now"."""
        clicks = [a for a in admissible if a.startswith("click[") and a != "click[buy now]"]
        if any(a.startswith("search[") for a in admissible):
            return f"search[{rng.choice(self._goal.split())}]"
        return rng.choice(clicks)

    def is_worth_learning(self, info: Mapping[str, Any]) -> bool:
        """Return whether the purchase is of the right kind and price, with half the attributes.

        Purchases of lookalikes are kept: otherwise, the habits that lead to them would look
        harmless in the demonstrations.
        """
        score = info["score_details"]
        return bool(score and score["r_type"] == 1 and score["r_att"] >= 0.5 and score["r_price"])
