"""The pocket model is cloned from exercises, then from demonstrations."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.environments.alfworld import GameGenerator
from hgpo_rllib.environments.checks import make_environment
from hgpo_rllib.environments.spec import Example
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.models import load_model
from hgpo_rllib.warmstart import prepare


def example(kind: str, place: str) -> Example:
    """Return a prompt whose object can be taken, and the response that takes it."""
    take = f"take {kind} 1 from shelf 1"
    prompt = f"Task: put a {kind} in {place}.\nYou see a {kind} 1.\nActions: go to desk 1, {take}"
    return prompt, f"<think>{kind} 1: take it</think><action>{take}</action>"


EXAMPLES = [example(kind, place) for kind in ("mug", "pen") for place in ("desk", "bed", "sink")]


def small(cache: Path, *overrides: str) -> RunConfig:
    """Return settings of a model that is cloned in seconds."""
    sizes = ("hidden_size=32", "layers=1", "vocabulary=340")
    steps = ("exercise_steps=3", "optimizer_steps=4")
    settings = [f"warm_start.{setting}" for setting in (*sizes, *steps)]
    return load_config(Path("alfworld_pocket"), [*settings, f"cache={cache}", *overrides])


def test_exercises_are_learned_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exercises end with the thought, and progress counts the steps of both phases."""
    learned: list[tuple[int, bool]] = []
    encoded: list[list[Example]] = []
    clone, encode = prepare.clone, prepare.encode

    def recorded_encode(tokenizer: Any, examples: Any) -> Any:
        encoded.append(list(examples))
        return encode(tokenizer, examples)

    def recorded_clone(model: Any, examples: Any, steps: int, **settings: Any) -> None:
        learned.append((steps, settings.get("decay", True)))
        clone(model, examples, steps, **settings)

    monkeypatch.setattr(prepare, "encode", recorded_encode)
    monkeypatch.setattr(prepare, "clone", recorded_clone)
    steps: list[tuple[int, int]] = []
    config = small(tmp_path)
    path = prepare.make_model_directory(
        config, {"": EXAMPLES}, lambda step, total: steps.append((step, total))
    )
    assert learned == [(3, False), (4, True)]
    exercises, examples = encoded
    assert {response.endswith("</think>") for _, response in exercises} == {True}
    assert {response.endswith("</action>") for _, response in examples} == {True}
    assert steps == [(step, 7) for step in range(1, 8)]
    with torch.no_grad():
        assert load_model(str(path))(torch.tensor([[1, 2]])).logits.isfinite().all()


def test_exercises_that_do_not_exist(tmp_path: Path) -> None:
    """Exercises cannot be made from prompts of another environment; the error names the setting."""
    others = [("a page", "<think>buy it</think><action>click[buy now]</action>")] * 3
    with pytest.raises(ConfigError, match=r"warm_start\.exercise_steps: .* set it to 0"):
        prepare.make_model_directory(small(tmp_path), {"": others}, lambda step, total: None)


def test_demonstrations_of_which_none_is_kept(tmp_path: Path) -> None:
    """If the expert wins no game, the error names the step limit and the environment."""
    with pytest.raises(ConfigError, match=r"warm_start\.max_steps=\d+: .*ALFWorld-v0"):
        prepare.make_model_directory(small(tmp_path), {"": []}, lambda step, total: None)


def test_the_expert_has_the_configured_share_of_random_moves(tmp_path: Path) -> None:
    """`warm_start.random_moves` is passed to the expert."""
    config = small(tmp_path, "warm_start.random_moves=0.25")
    assert GameGenerator().expert_factory(config).keywords == {"random_moves": 0.25}


def test_given_games_are_demonstrated(tmp_path: Path, generated_games: Path) -> None:
    """Demonstrated games are taken from the train split, spread over it if there are too many."""
    data = shutil.copytree(generated_games, tmp_path / "data")
    tree = data / "json_2.1.1"
    shutil.copytree(tree / "valid_seen", tree / "train", dirs_exist_ok=True)
    warm = ("games=2", "demonstrations=2", "random_moves=0", "action_noise=0")
    given = [f"env.data={data}", *(f"warm_start.{setting}" for setting in warm)]
    config = small(tmp_path, *given)
    done: list[tuple[int, int]] = []
    examples = prepare.make_demonstrations(config, lambda n, total: done.append((n, total)))[""]
    env = make_environment(config.env, "train")
    assert len(env.get_wrapper_attr("games")) == 6
    goals = [env.reset(seed=task)[1]["goal"] for task in (0, 0, 3, 3)]
    firsts = [prompt.splitlines()[0] for prompt, _ in examples if "\nStep 1\n" in prompt]
    assert firsts == [f"Task: {goal}" for goal in goals]
    assert done[-1] == (4, 4)


def test_the_model_depends_on_given_games(tmp_path: Path, generated_games: Path) -> None:
    """The model's path depends on the games' contents and split, but not on their location."""

    def path(data: Path, *overrides: str) -> Path:
        return prepare.model_path(small(tmp_path, f"env.data={data}", *overrides))

    moved = shutil.copytree(generated_games, tmp_path / "moved")
    assert path(moved) == path(generated_games) == path(moved, "games.rooms=[kitchen]")
    paths = {path(moved), path(moved, "env.train_split=valid_seen")}
    paths |= {prepare.model_path(small(tmp_path)), path(moved, "env.options={trusted: true}")}
    shutil.rmtree(next((moved / "json_2.1.1" / "train").iterdir()))
    paths.add(path(moved))
    assert len(paths) == 5
