"""`hgpo train --dry-run` on missing and broken inputs: exit code 2 and one line that names them."""

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from env_wrappers.alfworld.games import TREE, find_games
from env_wrappers.webshop.generator import ITEMS, generate
from env_wrappers.webshop.synthetic_products import CatalogueSpec
from tests.paths import ROOT
from tests.unit.cli.command import Run
from tests.unit.env_wrappers.webshop.webshop_data import item, write_data

EXAMPLES = ROOT / "tuned_examples"
ALFWORLD, WEBSHOP = EXAMPLES / "alfworld_pocket.yaml", EXAMPLES / "webshop_pocket.yaml"
HIPER = EXAMPLES / "alfworld_pocket_hiper.yaml"
STRATA = EXAMPLES / "alfworld_pocket_strata.yaml"
WITH_STRATEGIES = (
    "agent.strategy_prompt=strategy_compact algorithm.role_estimators={{'strategy':strata}} "
)


@pytest.fixture
def refused(hgpo: Run) -> Callable[..., str]:
    """Return a function that runs the command, expects an error, and returns its line."""
    return lambda *arguments: hgpo.refusal("train", *arguments, "--dry-run")


@pytest.fixture
def games(generated_games: Path, tmp_path: Path) -> Path:
    """Return a copy of three games in each split."""
    return Path(shutil.copytree(generated_games, tmp_path / "games"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with goals in all splits."""
    folder = tmp_path_factory.mktemp("webshop") / "store"
    generate(folder, CatalogueSpec(products=300))
    return folder


def test_sound_inputs(hgpo: Run, games: Path, store: Path, tmp_path: Path) -> None:
    """The dry run accepts given data as well as data that a run would generate."""
    for arguments in (
        (ALFWORLD, f"env.data={games}"),
        (WEBSHOP, f"env.data={store}", "env.options.price_seed=7", "env.options.goals=synthetic"),
        (WEBSHOP,),
        (ALFWORLD, "algorithm.estimator=hcapo"),
        (ALFWORLD, f"env.data={games}", "algorithm.estimator=gear"),
        (WEBSHOP, f"env.data={store}", "algorithm.estimator=sdar"),
        # The sample of the store has as many human goals, so that no split is empty.
        (WEBSHOP, "env.options.goals=human", "store.products=20000"),
    ):
        status, stdout, stderr = hgpo("train", *arguments, "--dry-run")
        assert status == 0, stderr
        assert stdout.startswith("name: ")


@pytest.mark.parametrize(
    ("file", "settings", "named"),
    [
        (ALFWORLD, "env.data={tmp}/missing", "/missing/json_2.1.1/train is not a directory"),
        (ALFWORLD, "env.data={games}/manifest.json", "manifest.json/json_2.1.1/train is not a dir"),
        (ALFWORLD, "env.data={games} env.train_split=valid", "json_2.1.1/valid is not a directory"),
        (ALFWORLD, "env.data={games} env.options.task_types=[fly]", "unknown task type 'fly'"),
        (ALFWORLD, "env.options.task_types=[fly]", "unknown task type 'fly'"),
        (ALFWORLD, "env.options.task_type=[x]", "unknown option env.options.task_type; available"),
        (ALFWORLD, "env.options.task_types=3", "env.options.task_types: "),
        (ALFWORLD, "env.options.success_reward=high", "env.options.success_reward: "),
        (ALFWORLD, "env.options.max_steps=5", "env.options.max_steps: it is a setting of its own"),
        (ALFWORLD, "games.valid_unseen=0", "the generated data/json_2.1.1/valid_unseen is not a"),
        (ALFWORLD, "evaluation.splits=[test]", "the generated data/json_2.1.1/test is not a dir"),
        (ALFWORLD, "games.task_types=[fly]", "unknown task type 'fly'"),
        (ALFWORLD, "env.env_id=hgpo/Nothing-v0", "hgpo/Nothing-v0"),
        (ALFWORLD, "agent.prompt=nothing", "agent.prompt: no prompt template 'nothing'"),
        (STRATA, "agent.strategy_prompt=nothing", "agent.strategy_prompt: no prompt template"),
        (STRATA, "agent.strategy_prompt=null", "algorithm: strata compares strategies, and the"),
        (STRATA, "algorithm.estimator=strata", "agent.strategy_prompt needs algorithm.role_est"),
        (STRATA, "algorithm.role_estimators={{}}", "agent.strategy_prompt needs algorithm.role_e"),
        (STRATA, "rollout.strategies=3", "rollout.group_size=8 cannot be divided among rollout.s"),
        (STRATA, "rollout.strategies=8", "rollout.strategies=8, with two members or more for each"),
        (
            STRATA,
            "rollout.gateway_port=80 agent.constrain_actions=false",
            "so agent.strategy_prompt=null is needed",
        ),
        (HIPER, "agent.subgoals=false", "algorithm.estimator=hiper needs responses with sub-goals"),
        (HIPER, "agent.context=conversation", "agent.subgoals=true needs agent.context=window"),
        (HIPER, "learner.critic=none", "algorithm.estimator=hiper needs a critic: set learner"),
        (HIPER, "algorithm.role_estimators={{'action':grpo}}", "hiper has advantages of tokens"),
        (HIPER, "algorithm.estimator=vetta", "estimator=vetta has advantages of tokens, but with"),
        (HIPER, "algorithm.estimator=ppo_tokens", "estimator=ppo_tokens has advantages of tokens"),
        (HIPER, "algorithm.estimator=gear learner.critic=none", "=gear has advantages of tokens"),
        (ALFWORLD, "algorithm.estimator=strata", "set agent.strategy_prompt=strategy_full, or"),
        (
            EXAMPLES / "textcraft_pocket.yaml",
            WITH_STRATEGIES,
            "the demonstrations of hgpo/TextCraft-v0 have no strategies",
        ),
        (
            EXAMPLES / "mixture_pocket.yaml",
            WITH_STRATEGIES,
            "agent.strategy_prompt: a mixture does not support strategies",
        ),
        (ALFWORLD, "agent.follow_up_prompt=nothing", "agent.follow_up_prompt: no prompt template"),
        (
            ALFWORLD,
            "agent.follow_up_prompt=alfworld_compact",
            "agent.follow_up_prompt: alfworld_compact: unknown variable history; available: adm",
        ),
        (ALFWORLD, "agent.prompt={tmp}/attribute.jinja", "'str object' has no attribute 'mood'"),
        (WEBSHOP, "env.data={tmp}/missing", "missing is not a directory"),
        (WEBSHOP, "env.data={tmp}", "no items_shuffle*.json in {tmp}"),
        (WEBSHOP, "env.data={store} env.train_split=valid", "unknown split 'valid'"),
        (WEBSHOP, "env.data={store} env.options.num_products=9", "split 'train' is empty"),
        (WEBSHOP, "env.data={store} env.options.price_seed=../../x", "env.options.price_seed: "),
        (WEBSHOP, "env.data={store} env.options.shuffle_seed=true", "env.options.shuffle_seed: "),
        (WEBSHOP, "env.data={store} env.options.goals=[human]", "env.options.goals: "),
        (WEBSHOP, "env.data={store} env.options.nouns=verbs", "unknown noun extractor 'verbs'"),
        (
            WEBSHOP,
            "env.data={store} env.options.price=1",
            "unknown option env.options.price; available: goals, ",
        ),
        (WEBSHOP, "store.products=20", "split 'train' is empty"),
        (WEBSHOP, "store.products=3 env.train_split=train_products", "'train_products' is empty"),
        (
            WEBSHOP,
            "env.data={store} model.model_path={tmp}/missing",
            "{tmp}/missing does not exist",
        ),
        (
            WEBSHOP,
            "env.data={store} model.model_path=no-model",
            "model.model_path: no-model does not exist",
        ),
        (
            WEBSHOP,
            "env.data={store} model.model_path={tmp}",
            "model.model_path: {tmp} holds no config.json",
        ),
    ],
)
def test_missing_and_unknown_inputs(
    refused: Callable[..., str],
    games: Path,
    store: Path,
    tmp_path: Path,
    file: Path,
    settings: str,
    named: str,
) -> None:
    (tmp_path / "attribute.jinja").write_text("{{ goal.mood }}")
    places = {"tmp": tmp_path, "games": games, "store": store}
    line = refused(file, *settings.format(**places).split())
    assert named.format(**places) in line


def test_demonstrations_without_strategies(hgpo: Run, tmp_path: Path) -> None:
    line = hgpo.refusal("data", "demos", STRATA, tmp_path / "out")
    assert "agent.strategy_prompt: hgpo data demos does not support strategies" in line


def test_a_sweep_checks_every_point(
    hgpo: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sweep checks all points first, including data that a later trial would generate."""
    monkeypatch.chdir(tmp_path)
    line = hgpo.refusal("sweep", WEBSHOP, "--grid", "store.products=300,20")
    assert "split 'train' is empty" in line
    assert list(tmp_path.iterdir()) == []


def test_broken_games(refused: Callable[..., str], games: Path) -> None:
    """A truncated, deeply nested, unknown or unsolvable game in any played split is an error."""
    game = find_games(games, "valid_unseen")[1]
    content = json.loads(game.read_text())
    for broken, reason in (
        ('{"solvable": true, "grammar": "', "Invalid JSON"),
        ('{"solvable": true, "x":' + "[" * 100_000, "recursion limit"),
        (json.dumps({"solvable": True}), "Field required"),
        (json.dumps(content | {"grammar": content["grammar"].replace("move", "throw")}), "grammar"),
    ):
        game.write_text(broken)
        line = refused(ALFWORLD, f"env.data={games}")
        assert str(game) in line
        assert reason in line
    for game in find_games(games, "valid_seen"):
        game.write_text(json.dumps(content | {"solvable": False}))
    assert "no solvable ALFWorld game" in refused(ALFWORLD, f"env.data={games}")
    shutil.rmtree(games / TREE / "valid_seen")
    assert "valid_seen is not a directory" in refused(ALFWORLD, f"env.data={games}")


def test_games_of_another_grammar_may_be_trusted(
    hgpo: Run, refused: Callable[..., str], games: Path
) -> None:
    game = find_games(games, "train")[0]
    content = json.loads(game.read_text())
    game.write_text(json.dumps(content | {"grammar": content["grammar"] + "\n"}))
    assert "env.options.trusted=true" in refused(ALFWORLD, f"env.data={games}")
    trusted = (f"env.data={games}", "env.options.trusted=true", "--dry-run")
    status, _, stderr = hgpo("train", ALFWORLD, *trusted)
    assert status == 0, stderr


def test_broken_stores(refused: Callable[..., str], store: Path, tmp_path: Path) -> None:
    data = tmp_path / "store"
    generate(data, CatalogueSpec(products=30))
    (data / ITEMS).write_text("[{")
    assert "is truncated or invalid JSON after product 0" in refused(WEBSHOP, f"env.data={data}")
    (data / ITEMS).write_bytes(b"[" * 100_000)
    assert "maximum recursion depth" in refused(WEBSHOP, f"env.data={data}")
    nobody: dict[str, Any] = {"B1": {"attributes": ["soft"]}}
    bare = write_data(tmp_path / "bare", items=[item("B1")], entries=nobody, human={})
    assert "no synthetic goal for any of the 1 products" in refused(WEBSHOP, f"env.data={bare}")


def test_broken_models(
    refused: Callable[..., str], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()

    def line() -> str:
        return refused(WEBSHOP, f"env.data={store}", f"model.model_path={model}")

    (model / "config.json").write_text("{")
    assert "holds no tokenizer.json" in line()
    (model / "tokenizer.json").write_text("{}")
    assert "holds no *.safetensors or *.bin" in line()
    (model / "model.safetensors").touch()
    wrong_type = '{"model_type": "llama", "num_hidden_layers": "three"}'
    for content in ("{", "[" * 100_000, '{"model_type": "abacus"}', wrong_type, "null"):
        (model / "config.json").write_text(content)
        assert "is not a HuggingFace directory" in line()
    # Code of a model is not run, also if someone would answer yes at a terminal.
    own = '{"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}'
    (model / "config.json").write_text(own)
    (model / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert "needs code of its own, which is not run" in line()
    assert not (tmp_path / "ran").exists()
    (model / "config.json").write_text('{"model_type": "qwen2"}')
    weights = save({"head": np.zeros(9)})
    for content in (b"version https://git-lfs.github.com/spec/v1\n", weights[:-1]):
        (model / "model.safetensors").write_bytes(content)
        assert "model.safetensors is not a complete file of weights" in line()
