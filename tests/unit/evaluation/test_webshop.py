"""Evaluations in a generated WebShop: names of games, scores, the oracle, prompts."""

from dataclasses import replace
from pathlib import Path

import pytest

from env_wrappers.webshop.generator import generate
from env_wrappers.webshop.synthetic_products import CatalogueSpec
from hgpo_rllib.config import load_config
from hgpo_rllib.evaluation.agents import agent_overrides
from hgpo_rllib.evaluation.evaluate import Request, evaluate
from hgpo_rllib.evaluation.plan import Kind
from hgpo_rllib.evaluation.show import show_evaluation
from hgpo_rllib.reporting.console import make_console
from tests.unit.env_wrappers.webshop.conftest import real_data as real_data  # a fixture
from tests.unit.env_wrappers.webshop.webshop_data import entry, item, write_data
from tests.unit.scripted_model import ScriptedModel, lines


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of 24 products."""
    folder = tmp_path_factory.mktemp("webshop") / "store"
    generate(folder, CatalogueSpec(products=24, seed=0))
    return folder


def make(
    store: Path,
    output: Path,
    agent: str,
    model: ScriptedModel | None = None,
    kind: Kind = "full",
    steps: int = 8,
) -> Request:
    """Return a request for twelve goals of the test split."""
    settings = ["env.env_id=hgpo/WebShop-v0", f"env.data={store}", f"env.max_steps={steps}"]
    settings += ["env.options.nouns=words", "rollout.max_concurrent_episodes=1"]
    config = load_config(None, [*agent_overrides(agent, "hgpo/WebShop-v0", False), *settings])
    return Request(config, model, agent, "test", kind, 1, 12, 2, output, "")


def test_oracle(store: Path, tmp_path: Path) -> None:
    """The oracle buys what is wanted, and games are named by product and goal."""
    finished = evaluate(make(store, tmp_path, "oracle"))
    row = finished.summary["results"]["all"]
    assert row["success_rate"]["mean"] == row["score"]["mean"] == 1
    for episode in lines(finished):
        asin, _, wish = episode["game"].partition(": ")
        assert wish == episode["goal"]
        assert f"click[{asin.lower()}]" in [step["action"] for step in episode["steps"]]
    protocol = finished.summary["protocol"]
    assert len(protocol["env"]["data_sha256"]) == 64


def test_oracle_on_a_split_by_product(store: Path, tmp_path: Path) -> None:
    """The oracle buys the products of that split's goals."""
    request = replace(make(store, tmp_path, "oracle"), split="train_products")
    finished = evaluate(request)
    assert finished.summary["results"]["all"]["success_rate"]["mean"] == 1
    assert all(e["game"].partition(": ")[2] == e["goal"] for e in lines(finished))


def test_players(store: Path, tmp_path: Path) -> None:
    """Scripted players win more often the more they check before they buy."""
    rates = {}
    for agent in ("first-hit", "first-hit-options", "careful", "exhaustive"):
        request = make(store, tmp_path / agent, agent, steps=40)
        rates[agent] = evaluate(request).summary["results"]["all"]["success_rate"]["mean"]
    assert rates["first-hit"] < 0.2
    assert rates["first-hit-options"] < 0.8 < rates["careful"] <= rates["exhaustive"] == 1


def test_an_oracle_that_finds_no_way_loses_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goals that no search finds, or whose product cannot be opened, are lost."""
    names = {"B1": "Blue mug", "B2": "Red bowl", "b3": "Pink jar"}
    data = write_data(
        tmp_path / "store",
        items=[item(asin, name=name) for asin, name in names.items()],
        entries={
            "B1": entry("xylophone", "soft"),  # words that occur nowhere in the store
            "B2": entry("red bowl", "soft"),
            "b3": entry("pink jar", "soft"),  # links to lower-case asins do not work
        },
        human={},
    )
    finished = evaluate(replace(make(data, tmp_path / "out", "oracle", steps=4), games=None))
    assert finished.summary["results"]["all"]["lost"] == 2
    assert finished.summary["results"]["all"]["success_rate"]["mean"] == pytest.approx(1 / 3)
    why = {
        episode["game"][:2]: episode["steps"][-1]["completion"]
        for episode in lines(finished)
        if not episode["success"]
    }
    assert why == {
        "B1": "no search for words of the instruction finds B1",
        "b3": "the plan does not buy the product",
    }
    show_evaluation(finished, make_console())
    assert "the oracle lost 2 episodes" in capsys.readouterr().out


def test_the_oracle_on_official_goals(real_data: Path, tmp_path: Path) -> None:
    """Of 500 test goals, no search finds 10, and 20 purchases earn less than 1."""
    finished = evaluate(replace(make(real_data, tmp_path, "oracle", steps=15), games=None))
    lost = [episode for episode in lines(finished) if not episode["success"]]
    unfound = [e for e in lost if "no search for words" in e["steps"][-1]["completion"]]
    assert (len(unfound), len(lost)) == (10, 30)


def test_a_part_of_the_score(store: Path, tmp_path: Path) -> None:
    """An agent that buys the first product earns a partial score."""

    def say(message: str, seed: int) -> str:
        offered = message.partition("you can take at this moment")[2]
        if "search[<your query>]" in offered:
            action = "search[" + message.partition("have to buy: ")[2].split(", and")[0] + "]"
        elif "click[buy now]" in offered:
            action = "click[buy now]"
        else:
            action = next(part for part in offered.split("'") if part.startswith("click[b0"))
        return f"<think>.</think><action>{action}</action>"

    finished = evaluate(make(store, tmp_path, "hgpo", ScriptedModel(say)))
    row = finished.summary["results"]["all"]
    assert 0 < row["score"]["mean"] < 1
    assert row["success_rate"]["mean"] < row["score"]["mean"]
    assert row["steps"] == 3
    episodes = lines(finished)
    assert row["score"]["mean"] == pytest.approx(sum(e["score"] for e in episodes) / 12)


def test_reflexion(store: Path, tmp_path: Path) -> None:
    """Prompts show the lesson, and the request for a reflection shows the pages."""
    model = ScriptedModel(lambda message, seed: "<think>hm</think><action>click[search]</action>")
    (episode, *_) = lines(evaluate(make(store, tmp_path, "reflexion", model)))
    asked = [m for m in model.messages if "Write to yourself" in m]
    assert len(asked) == 12
    assert asked[0].count("The page was: 'Search'") == 8
    second = [m for m in model.messages if "What you noted then (1): <think>hm" in m]
    assert len(second) == 12 * 8
    assert episode["trials"] == 2


def test_released_protocol(store: Path, tmp_path: Path) -> None:
    """The goals of one draw are all different."""
    episodes = lines(evaluate(make(store, tmp_path, "random", kind="released")))
    for seed in (123, 456, 789):
        games = [e["game"] for e in episodes if e["seed"] == seed]
        assert len(games) == len(set(games)) == 12
