"""`hgpo play webshop` in the terminal: purchases through a pipe."""

from pathlib import Path

import pytest

from env_wrappers.webshop.shop import open_shop
from tests.unit.cli.command import Run
from tests.unit.env_wrappers.webshop.webshop_store import ODD, SHIRT
from tests.unit.play.addresses import WANTED

SHOP_STEPS = 15
BUY_SHIRT = ("slim cotton shirt", f"click[{SHIRT.lower()}]", "click[red]", "click[small]")


@pytest.fixture(scope="module")
def goal(store: Path) -> int:
    """Return the number of the goal for a small red shirt."""
    return next(goal.index for goal in open_shop(store).goals if goal.options == WANTED)


class TestShopping:
    def test_winning_by_words_numbers_and_actions(self, hgpo: Run, store: Path, goal: int) -> None:
        options = ("play", "webshop", "--data", store, "--game", goal)
        answers = ["slim cotton shirt"]
        for wanted in (f"click[{SHIRT.lower()}]", "click[red]", "click[small]", "click[buy now]"):
            _, shown, _ = hgpo(*options, stdin="\n".join(answers))
            page = shown.split("steps left > ")[-2]
            number = page.split(wanted)[0].split()[-1]
            assert number.isdecimal()
            answers.append(wanted if wanted == "click[small]" else number)
        status, shown, stderr = hgpo(*options, stdin="\n".join(answers))
        assert (status, stderr) == (0, "")
        assert shown.endswith("\nWon in 5 steps.\n")
        assert "[clicked button] red [clicked button_]\n" in shown
        assert f"{SHOP_STEPS} steps left > slim cotton shirt\n" in shown
        for part in ("r_option", "score ", "1.000"):
            assert part in shown

    def test_a_purchase_that_is_not_all_that_was_asked_for(
        self, hgpo: Run, store: Path, goal: int
    ) -> None:
        stdin = "\n".join([*BUY_SHIRT[:2], "click[x-large]", "click[buy now]", "more"])
        _, shown, _ = hgpo("play", "webshop", "--data", store, "--game", goal, stdin=stdin)
        assert shown.endswith("\nLost: the goal is not reached after 4 steps.\n")
        assert "0.500" in shown

    def test_what_is_no_step(self, hgpo: Run, store: Path) -> None:
        """Empty answers, wrong numbers, and the number of the search bar are not steps."""
        stdin = "\n".join(["", "1", "0", "shirt", "99", "9" * 5000, "quit", "shirt"])
        status, shown, _ = hgpo("play", "webshop", "--data", store, stdin=stdin)
        assert status == 0
        assert shown.count("Write the words to search for.") == 1
        assert shown.count("There is no action 0: 1 to ") == 1
        assert shown.count("There is no action 99: 1 to ") == 1
        assert shown.endswith("Lost: you left after 1 step.\n")

    def test_losing_by_steps(self, hgpo: Run, store: Path) -> None:
        """An action that the store does not have counts as a step."""
        stdin = "\n".join(["click[\x1b[31m]"] * (SHOP_STEPS + 1))
        _, shown, _ = hgpo("play", "webshop", "--data", store, stdin=stdin)
        assert shown.count("click[\\x1b[31m] had no effect.") == SHOP_STEPS
        assert shown.endswith(f"Lost: the goal is not reached after {SHOP_STEPS} steps.\n")

    def test_options_named_like_buttons(self, hgpo: Run, store: Path) -> None:
        """Such options act like the buttons, and a label with brackets cannot be clicked."""
        stdin = "\n".join(["odd thing", f"click[{ODD.lower()}]", "click[a [b]]", "click[buy now]"])
        _, shown, _ = hgpo("play", "webshop", "--data", store, stdin=stdin)
        assert "click[a [b]] had no effect.\n" in shown
        assert shown.endswith("after 4 steps.\n")

    def test_goals_by_people(self, hgpo: Run, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEBSHOP_DATA", str(store))
        stdin = "\n".join([*BUY_SHIRT[:3], "click[buy now]"])
        _, shown, _ = hgpo("play", "webshop", "env.options.goals=human", stdin=stdin)
        assert "i need a slim fit shirt in red" in shown
        assert shown.endswith("\nWon in 4 steps.\n")
