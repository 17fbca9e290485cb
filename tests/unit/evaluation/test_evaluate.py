"""`hgpo evaluate` without Ray: a scripted model, real games, real files."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Text

from env_wrappers.files import json_hash
from hgpo_rllib.config import load_config
from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.evaluation.evaluate import evaluate
from hgpo_rllib.policy_server.types import RequestFailedError
from hgpo_rllib.results import load_evaluation
from hgpo_rllib.run.lock import locked
from tests.unit.scripted_model import ScriptedModel, draw, lines, make


class TestFullProtocol:
    def test_what_is_written(self, generated_games: Path, tmp_path: Path) -> None:
        """Every game is played with every seed; summary and protocol match the episodes."""
        model = ScriptedModel(draw)
        finished = evaluate(make(generated_games, tmp_path / "e", model))
        episodes = lines(finished)
        assert [(e["seed"], e["place"]) for e in episodes] == [
            (seed, place) for seed in range(2) for place in range(3)
        ]
        assert len({e["game"] for e in episodes}) == 3
        assert not any(str(generated_games) in json.dumps(e) for e in episodes)
        steps = [step for e in episodes for step in e["steps"]]
        assert {step["prompt"] for step in steps} == set(model.messages)
        assert len(steps) == len(model.messages)
        row = finished.summary["results"]["all"]
        assert (row["episodes"], row["games"]) == (6, 3)
        assert row["success_rate"]["mean"] == np.mean([e["success"] for e in episodes])
        assert row["steps"] == len(steps) / 6
        assert row["prompt_tokens"] == 7 * len(steps) / 6
        assert row["invalid_rate"] == 0
        task_types = finished.summary["results"]["by_task_type"]
        assert sum(task_type["episodes"] for task_type in task_types.values()) == 6
        protocol = finished.summary["protocol"]
        assert protocol["seeds"] == [0, 1]
        assert protocol["games"]["different"] == protocol["games"]["in_split"] == 3
        assert protocol["agent"]["memory_length"] == 2
        assert protocol["agent"]["templates"]["prompt"]["name"] == "alfworld_full"
        assert {"python", "alfworld", "hgpo-rllib"} <= protocol["versions"].keys()
        loaded = load_evaluation(finished.path)
        assert loaded.protocol == protocol
        assert loaded.episodes["goal"].tolist() == [e["goal"] for e in episodes]
        assert loaded.episodes["episode_length"].tolist() == [len(e["steps"]) for e in episodes]
        assert loaded.steps["action"].tolist() == [step["action"] for step in steps]
        rates = loaded.steps.merge(loaded.episodes, on=["seed", "place"]).groupby("task_type")
        for task_type, values in task_types.items():
            assert values["steps"] == rates.size()[task_type] / values["episodes"]

    def test_the_same_numbers_in_another_directory(
        self, generated_games: Path, tmp_path: Path
    ) -> None:
        """Episodes, results and protocol are equal; another seed gives other episodes."""
        first, second = (
            evaluate(make(generated_games, tmp_path / name, ScriptedModel(draw))) for name in "ab"
        )
        assert lines(first) == lines(second)
        assert first.summary["results"] == second.summary["results"]
        assert first.summary["protocol"] == second.summary["protocol"]
        zero, one = ([e["steps"] for e in lines(first) if e["seed"] == seed] for seed in (0, 1))
        assert zero != one

    def test_a_second_call_plays_nothing(self, generated_games: Path, tmp_path: Path) -> None:
        first = evaluate(make(generated_games, tmp_path / "e", ScriptedModel(draw)))
        names = ("episodes.jsonl", "protocol.json", "summary.json")
        before = [(first.path / name).stat().st_mtime_ns for name in names]
        again = ScriptedModel(draw)
        second = evaluate(make(generated_games, tmp_path / "e", again))
        assert (second.played, second.summary, again.messages) == (0, first.summary, [])
        assert [(first.path / name).stat().st_mtime_ns for name in names] == before

    def test_the_directory_has_the_protocols_name(
        self, generated_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        request = make(generated_games, tmp_path, ScriptedModel(draw), games=1)
        request = replace(request, output=None)
        finished = evaluate(request)
        hashed = json_hash(finished.summary["protocol"])
        assert finished.path == Path("evaluations") / f"alfworld-valid_seen-hgpo-{hashed[:10]}"
        other = replace(request, model=ScriptedModel(draw, weights="b"))
        assert evaluate(other).path != finished.path


def test_released_protocol(generated_games: Path, tmp_path: Path) -> None:
    """Each released seed draws games, and a game that is drawn twice is played twice."""
    request = make(generated_games, tmp_path, None, agent="random", kind="released", games=5)
    finished = evaluate(request)
    episodes = lines(finished)
    assert [(e["seed"], e["place"]) for e in episodes] == [
        (seed, place) for seed in (123, 456, 789) for place in range(5)
    ]
    row = finished.summary["results"]["all"]
    assert (row["episodes"], row["games"]) == (15, len({e["game"] for e in episodes}))
    assert finished.summary["protocol"]["games"]["drawn"] == 5
    assert len({tuple(s["action"] for s in e["steps"]) for e in episodes}) == 15


class Doors(gymnasium.Env):
    """An environment with three tasks, each of which has one right door."""

    observation_space = action_space = Text(100)
    num_tasks = 3

    def __init__(self, split: str, data: str | None, max_steps: int):
        self.steps = max_steps

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.door, self.left = seed, self.steps
        return "doors", self.info(False, "")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        won = action == f"open {self.door}"
        return "doors", float(won), won, self.left == 0 and not won, self.info(won, action)

    def info(self, won: bool, action: str) -> dict[str, Any]:
        offered = [f"open {door}" for door in range(3)]
        return {
            "goal": "find the door",
            "task_type": "doors",
            "game": f"doors/{self.door}",
            "admissible_actions": offered,
            "won": won,
            "inadmissible": action not in offered,
        }


def test_an_environment_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment is given by its Gymnasium id, and its games are numbers of tasks."""
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    gymnasium.register("my/Doors-v0", entry_point=Doors)
    monkeypatch.chdir(tmp_path)
    settings = ["env.env_id=my/Doors-v0", "env.data=.", "env.max_steps=9"]
    request = make(tmp_path, tmp_path, None, agent="random", split="test")
    finished = evaluate(replace(request, config=load_config(None, settings), output=None))
    assert finished.path.name.startswith("doors-test-random-")
    assert {episode["game"] for episode in lines(finished)} == {"test/0", "test/1", "test/2"}
    assert finished.summary["protocol"]["env"]["data_sha256"] is None
    other = load_config(None, [*settings, "env.data=other"])
    again = evaluate(replace(request, config=other, output=None))
    assert again.path != finished.path
    assert again.played == finished.played
    assert finished.summary["results"]["all"]["success_rate"]["mean"] > 0


class TestInterrupted:
    def test_goes_on(self, generated_games: Path, tmp_path: Path) -> None:
        """A second call keeps finished episodes and gives the results of a single call."""
        whole = evaluate(make(generated_games, tmp_path / "whole", ScriptedModel(draw)))

        def stop(message: str, seed: int) -> str:
            if len(model.messages) > 45:
                raise KeyboardInterrupt
            return draw(message, seed)

        model = ScriptedModel(stop)
        request = make(generated_games, tmp_path / "cut", model)
        with pytest.raises(KeyboardInterrupt):
            evaluate(request)
        file = tmp_path / "cut" / "episodes.jsonl"
        kept = file.read_text()
        assert 0 < kept.count("\n") < 6
        assert not (tmp_path / "cut" / "summary.json").exists()
        file.write_text(kept + kept[:100])
        again = ScriptedModel(draw)
        finished = evaluate(replace(request, model=again))
        assert finished.played == 6 - kept.count("\n")
        assert lines(finished) == lines(whole)
        assert finished.summary["results"] == whole.summary["results"]

    def test_an_episode_that_cannot_be_played(self, generated_games: Path, tmp_path: Path) -> None:
        """No summary is written without all episodes; the next call plays only the failed ones."""

        whole = evaluate(make(generated_games, tmp_path / "whole", ScriptedModel(draw)))
        goal = lines(whole)[0]["goal"]

        def refuse(message: str, seed: int) -> str:
            if goal in message:
                raise RequestFailedError("too long")
            return draw(message, seed)

        request = make(generated_games, tmp_path / "e", ScriptedModel(refuse))
        with pytest.raises(RunStoppedError, match=r"2 episodes could not .*request_errors 4"):
            evaluate(request)
        assert not (tmp_path / "e" / "summary.json").exists()
        with pytest.raises(ConfigError, match="is not finished: call `hgpo evaluate` again"):
            load_evaluation(tmp_path / "e")
        finished = evaluate(replace(request, model=ScriptedModel(draw)))
        assert finished.played == 2
        assert lines(finished) == lines(whole), "in the order of the plan"

    def test_one_writer(self, generated_games: Path, tmp_path: Path) -> None:
        request = make(generated_games, tmp_path / "e", ScriptedModel(draw), games=1)
        evaluate(request)
        with (
            locked(tmp_path / "e"),
            pytest.raises(ConfigError, match=f"e is in use: process {os.getpid()} on"),
        ):
            evaluate(request)


class TestRefused:
    def test_another_protocol_in_the_directory(self, generated_games: Path, tmp_path: Path) -> None:
        """The error names what differs."""
        evaluate(make(generated_games, tmp_path / "e", ScriptedModel(draw), games=1))
        for change, part in (
            ({"games": 2}, "games"),
            ({"seeds": 1}, "seeds"),
            ({"model": ScriptedModel(draw, "b")}, "model"),
            ({"agent": "vanilla"}, "agent"),
        ):
            request = make(generated_games, tmp_path / "e", ScriptedModel(draw), games=1)
            with pytest.raises(ConfigError, match=rf"another protocol \(other: .*{part}"):
                evaluate(replace(request, **change))

    def test_a_directory_of_something_else(self, generated_games: Path, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(ConfigError, match="contains other files"):
            evaluate(make(generated_games, tmp_path, ScriptedModel(draw)))
        assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
