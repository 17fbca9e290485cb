"""What `hgpo train` generates for WebShop: store, demonstrations, players and prompts."""

import random
from pathlib import Path

import gymnasium
import pytest

import env_wrappers  # noqa: F401  registers the environment
from env_wrappers.spaces import ANY_SEARCH
from env_wrappers.webshop.players import NoisyShopper
from hgpo_rllib.agent.parsing import parse_completion
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.environments import find_environment
from hgpo_rllib.environments.webshop import StoreGenerator
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.warmstart.demonstrations import demonstrate
from tests.paths import ROOT

EXAMPLE = ROOT / "tuned_examples/webshop_pocket.yaml"
AGENT = AgentSettings(prompt="webshop_compact", memory_length=2)


@pytest.fixture(scope="module")
def config() -> RunConfig:
    """Return the example with a smaller store."""
    return load_config(EXAMPLE, ["store.products=300", "warm_start.games=8"])


@pytest.fixture(scope="module")
def store(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store of the example."""
    path = tmp_path_factory.mktemp("store") / "store"
    done: list[tuple[int, int]] = []
    StoreGenerator().make_data(config, path, lambda *progress: done.append(progress))
    assert done[-1] == (300, 300)
    return path


def test_all_splits_have_goals(config: RunConfig, store: Path) -> None:
    """The train and evaluation splits of the example each have more than 300 goals."""
    for split in (config.env.train_split, *config.evaluation.splits):
        env = gymnasium.make(config.env.env_id, data=store, split=split, **config.env.options)
        assert env.get_wrapper_attr("num_tasks") > 300


def test_demonstrations_are_of_goals_to_train_on(config: RunConfig, tmp_path: Path) -> None:
    """As many train goals are demonstrated as requested, or all of them."""
    path = tmp_path / "store"
    names = StoreGenerator().make_demonstration_data(config, path, lambda done, total: None)
    assert names == [str(task) for task in range(8)]
    many = load_config(EXAMPLE, ["store.products=300", "warm_start.games=9999"])
    names = StoreGenerator().make_demonstration_data(many, path, lambda done, total: None)
    train = gymnasium.make(config.env.env_id, data=path, **config.env.options)
    assert len(names) == train.get_wrapper_attr("num_tasks")


def test_demonstrations_are_of_the_train_split(config: RunConfig, tmp_path: Path) -> None:
    """Demonstrations use the configured train split, such as `train_products`."""
    generator = StoreGenerator()
    settings = ["store.products=300", "warm_start.games=9999", "env.train_split=train_products"]
    by_product = load_config(EXAMPLE, settings)
    path = tmp_path / "store"
    names = generator.make_demonstration_data(by_product, path, lambda done, total: None)
    options = generator.demonstration_options(by_product)
    env = gymnasium.make(config.env.env_id, data=path, **options)
    assert len(names) == env.get_wrapper_attr("num_tasks")
    assert env.reset(seed=5)[1]["game"] == "train_products/5"


@pytest.mark.parametrize(("noise", "mistakes"), [(0.0, 0.0), (0.3, 0.3)])
def test_demonstrations_are_kept(
    config: RunConfig, store: Path, noise: float, mistakes: float
) -> None:
    """Most demonstrations are kept, fewer with noise, and labels are never perturbed."""
    warm_start = config.warm_start.model_copy(update={"random_moves": mistakes})
    config = config.model_copy(update={"warm_start": warm_start})
    env = gymnasium.make(config.env.env_id, data=store, max_steps=15, **config.env.options)
    kept = 0
    for task in range(20):
        rng = random.Random(task)
        player = StoreGenerator().expert_factory(config)
        examples = demonstrate(env, task, player, AGENT, noise, rng)
        kept += bool(examples)
        for prompt, response in examples:
            parsed = parse_completion(response)
            assert parsed.is_valid
            assert prompt.count("Task: ") == 2
            assert parsed.action.startswith(("search[", "click["))
        if examples:
            assert examples[-1][1].endswith("<action>click[buy now]</action>")
    assert kept >= (19 if noise == 0 else 8)


def test_strategies_are_followed(config: RunConfig, store: Path) -> None:
    """Demonstrations follow all strategies of how to search and whether to read features."""
    env = gymnasium.make(config.env.env_id, data=store, max_steps=15, **config.env.options)
    agent = AGENT.model_copy(update={"strategy_prompt": "strategy_compact"})
    found = set()
    for task in range(40):
        rng = random.Random(task)
        player = StoreGenerator().expert_factory(config)
        examples = demonstrate(env, task, player, agent, 0.0, rng)
        if examples:
            (_, strategy), *turns = examples
            words, how = strategy.removeprefix("search ").split(", ")
            assert all(f"Strategy: {strategy}\n" in prompt for prompt, _ in turns)
            search = parse_completion(turns[0][1]).action
            assert (words == "one word") == (len(search.split()) == 1)
            looked = any("look closer" in response for _, response in turns)
            assert not (looked and how == "buy")
            found |= {words, how}
    assert found == {"one word", "all words", "buy", "look closer"}


def test_shoppers_buy_prematurely(config: RunConfig, store: Path) -> None:
    """Shoppers buy the right products, about half of them without a requested option."""
    env = gymnasium.make(config.env.env_id, data=store, **config.env.options)
    scores = []
    for task in range(40):
        observation, info = env.reset(seed=task)
        shopper = StoreGenerator().expert_factory(config)(info, random.Random(task))
        last, done = None, False
        while not done:
            _, last = shopper.act(observation, info["admissible_actions"], last)
            observation, _, terminated, truncated, info = env.step(last)
            done = terminated or truncated
        if shopper.is_worth_learning(info):
            scores.append(info["score_details"].get("r_option", 1.0))
    assert len(scores) >= 36
    assert 0.2 < sum(score == 1 for score in scores) / len(scores) < 0.7


RIGHT = {"r_type": 1.0, "r_att": 1.0, "r_option": 0.0, "r_price": True}


@pytest.mark.parametrize(
    ("details", "kept"),
    [
        (RIGHT, True),
        (RIGHT | {"r_type": 0.5}, False),
        (RIGHT | {"r_att": 0.5}, True),
        (RIGHT | {"r_att": 0.4}, False),
        (RIGHT | {"r_price": False}, False),
        (None, False),
    ],
)
def test_what_is_learned_from(details: dict | None, kept: bool) -> None:
    """Purchases of the right kind, including lookalikes, are kept; other episodes are not."""
    shopper = NoisyShopper("find me a mug", random.Random(0), 0.3)
    assert shopper.is_worth_learning({"score_details": details}) is kept


def test_perturbed_actions() -> None:
    """Perturbed actions never buy; on a search page they search for one word of the goal."""
    shopper = NoisyShopper("find me a mug", random.Random(0), 0.3)
    rng = random.Random(0)
    clicks = ["click[back to search]", "click[buy now]", "click[red]"]
    assert {shopper.perturb(clicks, rng) for _ in range(50)} == {clicks[0], clicks[2]}
    searches = {shopper.perturb([ANY_SEARCH, "click[search]"], rng) for _ in range(50)}
    assert searches == {"search[find]", "search[me]", "search[a]", "search[mug]"}


def test_an_environment_without_a_generator() -> None:
    """An environment without a generator requires `model.model_path`."""
    with pytest.raises(ConfigError, match=r"model\.model_path: .* for CartPole-v1"):
        find_environment("CartPole-v1").require_generator()
