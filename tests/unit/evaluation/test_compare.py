"""`hgpo compare`: known differences, and evaluations that cannot be compared."""

import json
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from typer.testing import CliRunner

from hgpo_rllib.cli.main import app
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.compare import compare
from hgpo_rllib.evaluation.show import verdict
from hgpo_rllib.jsonl import EVALUATED_EPISODES
from hgpo_rllib.results import load_evaluation
from hgpo_rllib.results.evaluations import FORMAT


def write(
    path: Path, wins: dict[str, list[float]], env: dict[str, Any] | None = None, **protocol: Any
) -> Path:
    """Write an evaluation with scores by game and seed; a score of 1 is a win."""
    path.mkdir()
    episodes = [
        {
            "format": EVALUATED_EPISODES,
            "seed": seed,
            "place": place,
            "game": game,
            "task_type": game.split("-")[0],
            "success": score == 1,
            "score": score,
            "steps": [],
        }
        for place, (game, scores) in enumerate(wins.items())
        for seed, score in enumerate(scores)
    ]
    described = {
        "env": {"id": "e", "split": "s", "max_steps": 5, "options": {}, "data_sha256": "d"}
        | (env or {}),
        "protocol": "full",
        "seeds": [0, 1],
        "versions": {"python": "3"},
        "agent": {"name": path.name},
    } | protocol
    summary = {"format": FORMAT, "protocol": described}
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "episodes.jsonl").write_text("".join(json.dumps(e) + "\n" for e in episodes))
    return path


GAMES = [f"{task_type}-{number:02d}" for task_type in ("fetch", "clean") for number in range(10)]
A = {game: [1.0, 0.0] if place % 2 else [0.0, 0.0] for place, game in enumerate(GAMES)}
B = {game: [1.0, 1.0] if place % 2 else [0.0, 0.5] for place, game in enumerate(GAMES)}


def test_data_without_a_hash(tmp_path: Path) -> None:
    """Games of two data directories can have the same names: the comparison says so."""
    a, b = (
        load_evaluation(write(tmp_path / name, A, {"data_sha256": None, "data": f"/{name}"}))
        for name in ("a", "b")
    )
    assert compare(a, b).notes == ["data differ, and their games may too: /a and /b"]


def test_a_known_difference(tmp_path: Path) -> None:
    """Ten games of 20 win one episode of two more, and all scores rise."""
    a, b = (load_evaluation(write(tmp_path / n, w)) for n, w in (("a", A), ("b", B)))
    found = compare(a, b)
    test = found.tests["success_rate"]["all"]
    assert (test.better, test.worse, test.equal) == (10, 0, 10)
    assert test.difference.mean == pytest.approx(0.25)
    assert test.p_value == pytest.approx(stats.binomtest(10, 10).pvalue)
    assert found.means["success_rate"] == pytest.approx((0.25, 0.5))
    assert found.tests["score"]["all"].difference.mean == pytest.approx(0.375)
    assert found.tests["success_rate"].keys() == {"all", "fetch", "clean"}
    assert found.notes == []
    assert verdict(found).startswith("B - A = +25.0 points of success (25.0 → 50.0 %, 95 %: +")
    backwards = compare(b, a).tests["success_rate"]["all"]
    assert backwards.difference.mean == pytest.approx(-0.25)
    assert backwards.p_value == test.p_value


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"max_steps": 6}, "env.max_steps is 5 and 6"),
        ({"data_sha256": "other"}, "env.data_sha256 is d and other"),
        ({"split": "t"}, "env.split"),
        ({"id": "f"}, "env.id is e and f"),
    ],
)
def test_other_games_of_the_same_names(tmp_path: Path, change: dict[str, Any], part: str) -> None:
    a, b = write(tmp_path / "a", A), write(tmp_path / "b", B, env=change)
    with pytest.raises(ConfigError, match=part):
        compare(load_evaluation(a), load_evaluation(b), common=True)


def test_options_at_their_defaults(tmp_path: Path) -> None:
    """Naming a default changes nothing; the error names only options that differ."""
    options = [
        {"nouns": "words"},
        {"nouns": "words", "reward": "success"},
        {"nouns": "words", "reward": "score"},
    ]
    plain, named, score = (
        load_evaluation(
            write(tmp_path / str(i), A, env={"id": "hgpo/WebShop-v0", "options": option})
        )
        for i, option in enumerate(options)
    )
    assert compare(plain, named).games == len(A)
    expected = r"env\.options is {'reward': 'success'} and {'reward': 'score'}$"
    for left in (plain, named):
        with pytest.raises(ConfigError, match=expected):
            compare(left, score)
    unknown = load_evaluation(write(tmp_path / "unknown", A, env={"options": {"size": 1}}))
    other = load_evaluation(write(tmp_path / "other", A))
    with pytest.raises(ConfigError, match=r"env\.options is {'size': 1} and {}$"):
        compare(unknown, other)


def test_other_names(tmp_path: Path) -> None:
    """Different games are an error unless `--common` is given, which adds a note."""
    fewer = {game: B[game] for game in GAMES[:15]}
    a, b = (load_evaluation(write(tmp_path / n, w)) for n, w in (("a", A), ("b", fewer)))
    with pytest.raises(ConfigError, match=r"15 games in common and 5 .* add --common"):
        compare(a, b)
    found = compare(a, b, common=True)
    assert found.games == 15
    assert found.notes == ["5 games that only one of them has are left out"]
    assert compare(b, a, common=True).notes == found.notes
    none = load_evaluation(write(tmp_path / "c", {"other-1": [1.0]}))
    with pytest.raises(ConfigError, match="no game in common"):
        compare(a, none, common=True)


def test_clusters_of_games(tmp_path: Path) -> None:
    """Games of one product count as one in standard errors and p-values."""
    before = {f"{product}: goal {goal}": [0.0] for product in "abcd" for goal in range(5)}
    after = {game: [float(game[0] in "abc")] for game in before}
    a, b = (load_evaluation(write(tmp_path / n, w)) for n, w in (("a", before), ("b", after)))
    games = compare(a, b).tests["success_rate"]["all"]
    found = compare(a, b, cluster="^[^:]+")
    products = found.tests["success_rate"]["all"]
    assert products.difference.mean == games.difference.mean == 0.75
    assert games.p_value < 0.001
    assert products.p_value == pytest.approx(stats.binomtest(3, 3).pvalue)
    assert products.difference.standard_error == pytest.approx(0.25)  # 4 values: 1, 1, 1, 0
    assert (products.better, products.worse, products.equal) == (15, 0, 5)
    assert found.notes == ["errors, intervals and p-values are of 4 clusters of games"]
    with pytest.raises(ConfigError, match=r"--cluster \[: not a regular expression"):
        compare(a, b, cluster="[")
    with pytest.raises(ConfigError, match="does not match the game a: goal 0"):
        compare(a, b, cluster="[0-9]{2}")


def test_the_command(tmp_path: Path) -> None:
    """The command prints a line, a table and notes, or one JSON object."""
    a, b = write(tmp_path / "a", A), write(tmp_path / "b", B, seeds=[7])
    shown = CliRunner().invoke(app, ["compare", str(a), str(b)])
    assert shown.exit_code == 0
    assert "B - A = +25.0 points" in shown.stdout
    assert "note: seeds differ: [0, 1] and [7]" in shown.stdout
    row = next(line for line in shown.stdout.splitlines() if line.startswith("│ all "))
    name, difference, _, *others = (cell.strip() for cell in row.strip("│").split("│"))
    assert (name, difference) == ("all", "+25.0 ± 5.7")  # ten of 0.5 and ten of 0
    assert others == ["0.001953", "10", "0", "10"]
    printed = CliRunner().invoke(app, ["compare", str(a), str(b), "--json"])
    found = json.loads(printed.stdout)
    clustered = CliRunner().invoke(app, ["compare", str(a), str(b), "--cluster", "^[a-z]+"])
    assert "note: errors, intervals and p-values are of 2 clusters of games" in clustered.stdout
    assert found["tests"]["success_rate"]["all"]["better"] == 10
    assert found["games"] == 20


def test_no_evaluation(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not an evaluation"):
        load_evaluation(tmp_path)
    (tmp_path / "summary.json").write_text('{"format": "hgpo-evaluation-0"}')
    with pytest.raises(ConfigError, match="'hgpo-evaluation-0' is not known"):
        load_evaluation(tmp_path)


def test_games_that_were_not_played_as_often(tmp_path: Path) -> None:
    """A difference of means over unequal numbers of plays is skewed, which the test ignores."""
    once = {game: scores[:1] for game, scores in A.items()}
    a, b = (load_evaluation(write(tmp_path / n, w)) for n, w in (("a", once), ("b", B)))
    (note,) = compare(a, b).notes
    assert note.startswith("games were not played as often in both")
