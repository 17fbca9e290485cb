"""`hgpo play webshop` in the terminal: a person's purchase through a pipe, recorded episodes."""

from pathlib import Path

import pytest

from env_wrappers.webshop.shop import open_shop
from hgpo_rllib.cli.play_webshop import MAX_STEPS
from tests.unit.cli.test_data_command import Run, hgpo  # noqa: F401 (hgpo is a fixture)
from tests.unit.cli.test_play_command import step, write_episode
from tests.unit.env_wrappers.webshop.webshop_store import ODD, SHIRT, write_store

# ruff takes the fixture's name for one that is defined again.
# ruff: noqa: F811

WANTED = {"color": "red", "size": "small"}
BUY_SHIRT = ("slim cotton shirt", f"click[{SHIRT.lower()}]", "click[red]", "click[small]")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data directory of a small store."""
    return write_store(tmp_path_factory.mktemp("webshop") / "data")


@pytest.fixture(scope="module")
def goal(store: Path) -> int:
    """Return the number of the goal for a small red shirt."""
    return next(goal.index for goal in open_shop(store).goals if goal.options == WANTED)


class TestShopping:
    def test_winning_by_words_numbers_and_actions(self, hgpo: Run, store: Path, goal: int) -> None:
        options = ("play", "webshop", "--data", store, "--goal", goal)
        answers = ["slim cotton shirt"]
        for wanted in (SHIRT, "red", "click[small]", "Buy Now"):
            status, shown, _ = hgpo(*options, stdin="\n".join(answers))
            page = shown.split("steps left > ")[-2].splitlines()
            number = next((line.split()[0] for line in page if line.endswith(f" {wanted}")), wanted)
            assert number.isdecimal() == (wanted != "click[small]")
            answers.append(number)
        status, shown, stderr = hgpo(*options, stdin="\n".join(answers))
        assert (status, stderr) == (0, "")
        assert shown.endswith("\nWon, in 5 steps.\n")
        assert "red  (chosen)\n" in shown
        assert shown.count("small  (chosen)\n") == 1
        assert f"{MAX_STEPS} steps left > slim cotton shirt\n" in shown
        for part in ("color: red, size: small", "slim fit", "same", "1.000"):
            assert part in shown

    def test_a_purchase_that_is_not_all_that_was_asked_for(
        self, hgpo: Run, store: Path, goal: int
    ) -> None:
        stdin = "\n".join([*BUY_SHIRT[:2], "click[x-large]", "click[buy now]", "more"])
        _, shown, _ = hgpo("play", "webshop", "--data", store, "--goal", goal, stdin=stdin)
        assert shown.endswith("\nLost: not all that was asked for, in 4 steps.\n")
        assert "0.500" in shown

    def test_what_is_no_step(self, hgpo: Run, store: Path) -> None:
        """Empty answers, and numbers where there is nothing to click."""
        stdin = "\n".join(["", "1", "0", "shirt", "99", "quit", "shirt"])
        status, shown, _ = hgpo("play", "webshop", "--data", store, stdin=stdin)
        assert status == 0
        assert shown.count("There is nothing to click yet") == 2
        assert "There is nothing to click at 99: 1 to " in shown
        assert shown.endswith("Lost: nothing is bought after 1 step.\n")

    def test_losing_by_steps(self, hgpo: Run, store: Path) -> None:
        """What the store does not understand is a step, too."""
        stdin = "\n".join(["click[\x1b[31m]"] * (MAX_STEPS + 1))
        _, shown, _ = hgpo("play", "webshop", "--data", store, stdin=stdin)
        assert shown.count("The store does not understand click[\\x1b[31m].") == MAX_STEPS
        assert shown.endswith(f"Lost: nothing is bought after {MAX_STEPS} steps.\n")

    def test_options_named_like_buttons(self, hgpo: Run, store: Path) -> None:
        """They do what the buttons do, as for the agent; what brackets hide cannot be clicked."""
        stdin = "\n".join(["odd thing", f"click[{ODD.lower()}]", "click[a [b]]", "click[buy now]"])
        _, shown, _ = hgpo("play", "webshop", "--data", store, stdin=stdin)
        assert "The store does not understand click[a [b]].\n" in shown
        assert shown.endswith("in 4 steps.\n")

    def test_goals_by_people(self, hgpo: Run, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEBSHOP_DATA", str(store))
        stdin = "\n".join([*BUY_SHIRT[:3], "click[buy now]"])
        _, shown, _ = hgpo("play", "webshop", "--goals", "human", stdin=stdin)
        assert "i need a slim fit shirt in red" in shown
        assert shown.endswith("\nWon, in 4 steps.\n")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--goal", "999"), "--goal: no goal 999, test has "),
        (("--goal", "-1"), "--goal: no goal -1, test has "),
        (("--split", "nix"), "unknown split 'nix'"),
        (("--split", "train"), "split 'train' is empty"),
        (("--index", "0"), "add --episode"),
        (("--step-by-step",), "add --episode"),
        (("--episode", "x"), "leave out --data"),
        (("--port", "0"), "add --web"),
        (("--web", "--goal", "0"), "leave out --goal"),
    ],
)
def test_bad_input(hgpo: Run, store: Path, options: tuple[str, ...], named: str) -> None:
    status, stdout, stderr = hgpo("play", "webshop", "--data", store, *options)
    assert (status, stdout) == (2, "")
    (line,) = stderr.splitlines()
    assert line.startswith("hgpo: ")
    assert named in line


def test_a_recorded_episode(hgpo: Run, tmp_path: Path) -> None:
    file = write_episode(tmp_path / "x.jsonl", step(anchor="WebShop [SEP] Search"), step())
    status, stdout, stderr = hgpo("play", "webshop", "--episode", file)
    assert (status, stderr) == (0, "")
    assert "WebShop [SEP] Search" in stdout
    assert stdout == hgpo("play", "alfworld", "--episode", file)[1]
