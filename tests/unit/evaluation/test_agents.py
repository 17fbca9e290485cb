"""Agents of evaluations: their prompts, memory and actions. Real games, no Ray."""

import asyncio
import io
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from env_wrappers.spaces import ANY_ACTION
from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.evaluation import scripted
from hgpo_rllib.evaluation.evaluate import evaluate
from hgpo_rllib.evaluation.request import check_agent
from hgpo_rllib.evaluation.scripted import HumanAgent, RandomAgent
from hgpo_rllib.settings.env import EnvSettings
from tests.unit.scripted_model import ScriptedModel, lines, make


def look(message: str, seed: int) -> str:
    """Return a response that makes no progress."""
    return "<think>I shall\nlook</think><action>look</action>"


class TestPrompted:
    def test_vanilla_forgets(self, generated_games: Path, tmp_path: Path) -> None:
        """Prompts show the goal but no earlier turn."""
        model = ScriptedModel(look)
        finished = evaluate(make(generated_games, tmp_path, model, agent="vanilla", seeds=1))
        goals = {episode["goal"] for episode in lines(finished)}
        assert all(any(goal in message for goal in goals) for message in model.messages)
        assert not any("[Step" in message for message in model.messages)
        assert finished.summary["protocol"]["agent"]["memory_length"] == 0

    def test_react_shows_every_turn_with_its_thought(
        self, generated_games: Path, tmp_path: Path
    ) -> None:
        """Prompts show all turns in order, in the format of the examples."""
        model = ScriptedModel(look)
        evaluate(make(generated_games, tmp_path, model, agent="react", seeds=1, games=1))
        turn = "<think>I shall look</think><action>look</action>"
        assert [message.count(turn) for message in model.messages] == list(range(10))
        last = model.messages[-1].partition("Now it is your turn.")[2]
        assert last.count("You see: ") == 10
        assert "You have tried this before" not in last


def test_strategies(generated_games: Path, tmp_path: Path) -> None:
    """The agent `hgpo` writes a strategy first and sees it in later prompts; `vanilla` has none."""

    def say(message: str, seed: int) -> str:
        return f"plan {seed}" if message.endswith("Strategy:") else look(message, seed)

    roles = ["algorithm.estimator=grpo", "algorithm.role_estimators={strategy: strata}"]
    roles.append("agent.strategy_prompt=strategy_compact")
    for agent, turns in (("hgpo", 11), ("vanilla", 10)):
        model = ScriptedModel(say)
        finished = evaluate(make(generated_games, tmp_path / agent, model, agent, roles, seeds=1))
        assert len(model.messages) == 3 * turns
        assert all(episode["prompt_tokens"] == 7 * turns for episode in lines(finished))
        shown = ["Strategy: plan" in message for message in model.messages]
        assert shown == [t > 0 and agent == "hgpo" for t in range(turns)] * 3
        templates = finished.summary["protocol"]["agent"]["templates"]
        assert ("strategy" in templates) == (agent == "hgpo")


class TestReflexion:
    def test_lessons_are_carried_over(self, generated_games: Path, tmp_path: Path) -> None:
        """Three lost trials give two lessons; each trial shows the lessons of those before it."""

        def say(message: str, seed: int) -> str:
            if "Write to yourself" in message:
                return f"lesson {1 + message.count('earlier attempt')} of {seed}"
            return look(message, seed)

        model = ScriptedModel(say)
        request = make(generated_games, tmp_path, model, agent="reflexion", seeds=1, games=1)
        finished = evaluate(request)
        played = [m for m in model.messages if "Write to yourself" not in m]
        asked = [m for m in model.messages if "Write to yourself" in m]
        assert [m.count("What you noted then") for m in played] == [0] * 10 + [1] * 10 + [2] * 10
        assert ["lesson 1" in m for m in played] == [False] * 10 + [True] * 20
        assert [m.count("What you had noted") for m in asked] == [0, 1]
        assert [m.count("You did: look") for m in asked] == [10, 10]
        (episode,) = lines(finished)
        assert [trial["reflection"][:8] for trial in episode["lost_trials"]] == [
            "lesson 1",
            "lesson 2",
        ]
        assert len({trial["reflection"] for trial in episode["lost_trials"]}) == 2
        assert (episode["trials"], len(episode["steps"])) == (3, 10)
        assert episode["prompt_tokens"] == 7 * 32, "reflections count, and lost trials"
        protocol = finished.summary["protocol"]["agent"]
        assert protocol["trials"] == 3
        assert protocol["templates"]["reflection"]["name"] == "alfworld_reflexion"

    def test_ends_with_the_first_win(self, generated_games: Path, tmp_path: Path) -> None:
        """No trial follows a win, and each trial draws its own seeds."""
        seeds = []

        def say(message: str, seed: int) -> str:
            seeds.append(seed)
            if "Write to yourself" in message:
                return "Try it."
            taken = message.partition("Now it is your turn")[2].count("</action>") - 1
            action = wins[taken] if "Try it." in message else "look"
            return f"<think>.</think><action>{action}</action>"

        request = make(generated_games, tmp_path / "o", None, agent="oracle", seeds=1, games=1)
        (solved,) = lines(evaluate(request))
        wins = [step["action"] for step in solved["steps"]]
        model = ScriptedModel(say)
        asked = make(generated_games, tmp_path / "r", model, agent="reflexion", seeds=1, games=1)
        (episode,) = lines(evaluate(asked))
        assert (episode["success"], episode["trials"]) == (True, 2)
        assert [step["action"] for step in episode["steps"]] == wins
        assert len(set(seeds)) == len(seeds) == 10 + 1 + len(wins)


class TestScripted:
    def test_oracle_wins(self, generated_games: Path, tmp_path: Path) -> None:
        finished = evaluate(make(generated_games, tmp_path, None, agent="oracle", seeds=1))
        row = finished.summary["results"]["all"]
        assert row["success_rate"]["mean"] == 1
        assert row["success_rate"]["low"] == pytest.approx(0.025 ** (1 / 3))
        assert finished.summary["protocol"]["model"] is None

    def test_the_explorer_wins(self, generated_games: Path, tmp_path: Path) -> None:
        """The explorer wins with enough steps, and its thoughts are recorded as completions."""
        longer = ["env.max_steps=60"]
        finished = evaluate(make(generated_games, tmp_path, None, "explorer", longer, seeds=1))
        assert finished.summary["results"]["all"]["success_rate"]["mean"] == 1
        steps = [step for episode in lines(finished) for step in episode["steps"]]
        assert not any(step["inadmissible"] for step in steps)
        assert any("find it" in step["completion"] for step in steps)

    def test_random_is_seeded(self, generated_games: Path, tmp_path: Path) -> None:
        """Actions are admissible, reproducible, and different for another seed."""
        first, second = (
            lines(evaluate(make(generated_games, tmp_path / name, None, agent="random")))
            for name in "ab"
        )
        assert first == second
        steps = [step for episode in first for step in episode["steps"]]
        assert not any(step["inadmissible"] for step in steps)
        actions = [[step["action"] for step in episode["steps"]] for episode in first]
        assert actions[:3] != actions[3:]

    def test_random_searches(self) -> None:
        """Where any search is offered, the agent searches for a random word of the goal."""
        info = {"goal": "red mug", "admissible_actions": ["search[<your query>]"]}
        agent = RandomAgent(info, "group", "name")
        actions = {asyncio.run(agent.act("", info)).action for _ in range(30)}
        assert actions == {"search[red]", "search[mug]"}

    def test_no_oracle_or_player(self) -> None:
        for agent in ("oracle", "careful"):
            with pytest.raises(ConfigError, match=f"--agent {agent}: for My-v0 choose .*, human$"):
                check_agent(agent, EnvSettings(env_id="My-v0"))

    def test_human(
        self, generated_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Numbers and words are read from standard input; leaving keeps the finished games."""
        request = make(generated_games, tmp_path / "o", None, agent="oracle", seeds=1)
        plans = [[step["action"] for step in e["steps"]] for e in lines(evaluate(request))]
        human = make(generated_games, tmp_path / "h", None, agent="human", seeds=1)
        typed = ["99", "", *plans[0], "1", "quit"]
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(typed) + "\n"))
        with pytest.raises(RunStoppedError, match="to continue with this game"):
            evaluate(human)
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*plans[1], *plans[2]]) + "\n"))
        finished = evaluate(human)
        assert finished.played == 2
        assert finished.summary["results"]["all"]["success_rate"]["mean"] == 1
        assert [[s["action"] for s in e["steps"]] for e in lines(finished)] == plans

    @pytest.mark.parametrize(
        ("answers", "action"),
        [
            (["2"], "click[red]"),
            (["1", "red mug"], "search[red mug]"),
            (["search[a]"], "search[a]"),
            (["click[red]"], "click[red]"),
        ],
    )
    def test_human_shops(
        self, answers: list[str], action: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Words are searched for if the page has a search bar."""
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(answers) + "\n"))
        info: dict[str, Any] = {
            "goal": "g",
            "admissible_actions": ["search[<your query>]", "click[red]"],
        }
        agent = HumanAgent(Console(file=io.StringIO()), info, "", "")
        assert asyncio.run(agent.act("page", info)).action == action

    def test_human_plays_with_any_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If any text is an action, a number is sent as text."""
        monkeypatch.setattr("sys.stdin", io.StringIO("\n50\n"))
        info: dict[str, Any] = {"goal": "g", "admissible_actions": [ANY_ACTION]}
        agent = HumanAgent(Console(file=io.StringIO()), info, "", "")
        assert asyncio.run(agent.act("guess", info)).action == "50"

    def test_the_first_ctrl_c_ends_a_human_game(
        self, monkeypatch: pytest.MonkeyPatch, signals: None
    ) -> None:
        """Reading an action blocks the event loop, which would ignore the first Ctrl-C."""
        continued = []

        def interrupted(*arguments: Any) -> str:
            signal.raise_signal(signal.SIGINT)
            continued.append(True)
            return "look"

        monkeypatch.setattr(scripted, "read_action", interrupted)
        agent = HumanAgent(Console(file=io.StringIO()), {"goal": "g"}, "", "")
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(agent.act("page", {"admissible_actions": ["look"]}))
        assert not continued
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
