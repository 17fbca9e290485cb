"""Generated games are valid, reproducible and kept apart by split."""

import dataclasses
import json
import random
import re
import tarfile
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import pytest
from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

from env_wrappers.alfworld import generator
from env_wrappers.alfworld.engine import GameEngine
from env_wrappers.alfworld.games import GAME_FILE, find_games, task_type_of
from env_wrappers.alfworld.generator import GenerationSpec, generate, generate_game
from env_wrappers.alfworld.rooms import FURNITURE, build_room, kind_of, scenes
from env_wrappers.datasets import new_directory, write_manifest
from env_wrappers.errors import DataError
from tests.paths import ALFWORLD_ARCHIVE

OFFICIAL_UNSEEN = {10, 219, 308, 424}
TINY = GenerationSpec(
    seed=5,
    splits={"train": 2},
    task_types=("pick_and_place_simple",),
    rooms=("bathroom",),
    max_receptacles=16,
)


def _bytes(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def _scenes(root: Path, split: str) -> set[int]:
    return {int(game.parent.parent.name.rsplit("-", 1)[1]) for game in find_games(root, split)}


@pytest.mark.parametrize(
    ("task_type", "room"),
    [
        ("pick_two_obj_and_place", "bathroom"),
        ("pick_two_obj_and_place", "livingroom"),
        ("pick_heat_then_place_in_recep", "kitchen"),
        ("pick_cool_then_place_in_recep", "kitchen"),
    ],
)
def test_the_other_task_types_and_rooms_give_games(
    tmp_path: Path, task_type: str, room: str
) -> None:
    spec = GenerationSpec(rooms=(room,), max_receptacles=24)
    game = generate_game(tmp_path, spec, task_type, "train", 1)
    assert game is not None
    assert task_type_of(game) == task_type
    assert find_games(tmp_path, "train") == [game]
    scene = json.loads((game.parent / "traj_data.json").read_text())["scene"]["scene_num"]
    first = {"kitchen": 1, "livingroom": 201, "bathroom": 401}[room]
    assert first <= scene < first + 30


def test_alfworlds_own_environment_plays_them(generated_games: Path) -> None:
    """`AlfredTWEnv` finds every game of the split, and the walkthroughs win them."""
    config = {
        "dataset": {"data_path": str(generated_games / "json_2.1.1/train"), "num_train_games": -1},
        "env": {"task_types": [1, 2, 3, 4, 5, 6], "domain_randomization": False}
        | {"goal_desc_human_anns_prob": 0.0, "expert_type": "handcoded"},
        "logic": {
            "domain": str(resources.files("alfworld") / "data/alfred.pddl"),
            "grammar": str(resources.files("alfworld") / "data/alfred.twl2"),
        },
        "general": {"training_method": "dqn"},
        "rl": {"training": {"max_nb_steps_per_episode": 50}},
    }
    theirs = AlfredTWEnv(config, train_eval="train")
    games = find_games(generated_games, "train")
    assert sorted(theirs.game_files) == [str(game) for game in games]
    env = theirs.init_env(batch_size=1)
    played = set()
    for _ in games:
        _, info = env.reset()
        (game,) = info["extra.gamefile"]
        played.add(game)
        for command in json.loads(Path(game).read_text())["walkthrough"]:
            assert not info.get("won", [False])[0]
            *_, info = env.step([command])
        assert info["won"] == [True]
    assert played == set(theirs.game_files)


def test_a_floor_lamp_can_be_the_light(tmp_path: Path) -> None:
    """A goal in a living room can name a floor lamp, which its walkthrough uses."""
    spec = GenerationSpec(rooms=("livingroom",), max_receptacles=24)
    games = (
        generate_game(tmp_path, spec, "look_at_obj_in_light", "train", seed) for seed in range(10)
    )
    game = next(g for g in games if g is not None and "FloorLamp" in g.parent.parent.name)
    content = json.loads(game.read_text())
    assert content["walkthrough"][-1].startswith("use floorlamp ")
    assert "floorlamp" in GameEngine(game).reset()[1].rpartition("Your task is to: ")[2]


@pytest.mark.skipif(
    not ALFWORLD_ARCHIVE.is_file(), reason="the official ALFWorld games are not here"
)
def test_rooms_have_the_furniture_of_official_ones() -> None:
    """Rooms have as much furniture of every type as ALFWorld's games of the same scene."""
    checked = set()
    with tarfile.open(ALFWORLD_ARCHIVE) as archive:
        for member in archive:
            path = Path(member.name)
            scene = int(path.parent.parent.name.rpartition("-")[2] or 0) if path.suffix else 0
            if path.name != GAME_FILE or scene in checked:
                continue
            checked.add(scene)
            file = archive.extractfile(member)
            assert file is not None
            problem = json.load(file)["pddl_problem"]
            theirs = Counter(re.findall(r"\(receptacleType \S+ (\w+)Type\)", problem))
            room = build_room(random.Random(scene), scene)
            assert Counter(map(kind_of, room.receptacles)) == theirs, scene
    assert len(checked) > 50


@pytest.mark.parametrize(("scene", "low", "high"), [(10, 15, 60), (219, 5, 35), (424, 6, 30)])
def test_other_scenes_are_furnished_like_those_of_their_room(
    scene: int, low: int, high: int
) -> None:
    """Scenes without known counts have every furniture type that the scene shows."""
    rooms = [build_room(random.Random(seed), scene) for seed in range(20)]
    assert all(low <= len(room.receptacles) <= high for room in rooms)
    assert len({len(room.receptacles) for room in rooms}) > 1
    for room in rooms:
        assert room.kinds == set(room.object_types) & set(FURNITURE)


def test_unseen_scenes_are_unseen(generated_games: Path) -> None:
    seen = _scenes(generated_games, "train") | _scenes(generated_games, "valid_seen")
    assert all(scene % 100 > 6 and scene not in OFFICIAL_UNSEEN for scene in seen)
    unseen = _scenes(generated_games, "valid_unseen")
    assert all(1 <= scene % 100 <= 6 or scene in OFFICIAL_UNSEEN for scene in unseen)


@pytest.mark.parametrize("room", ["kitchen", "livingroom", "bedroom", "bathroom"])
def test_the_official_unseen_scenes_are_unseen(room: str) -> None:
    """Each room type has one official unseen scene, which generated train games do not use."""
    train, seen, unseen = (set(scenes(room, s)) for s in ("train", "valid_seen", "valid_unseen"))
    assert len(unseen & OFFICIAL_UNSEEN) == 1
    assert train == seen
    assert not train & (unseen | OFFICIAL_UNSEEN)
    assert len(train | unseen) == 30
    assert set(scenes(room, "test")) == train | unseen


def test_duplicate_games_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        """A fake engine for two games that differ only in their names."""

        names: ClassVar[dict[str, str]] = {}

        def __init__(self, game: dict[str, str]) -> None: ...

    monkeypatch.setattr(generator, "GameEngine", Fake)
    monkeypatch.setattr(generator, "write_problem", lambda *args: f"problem {args[-1]}\nthe same")
    monkeypatch.setattr(generator, "oracle_plan", lambda *args: [])
    monkeypatch.setattr(generator, "why_not_won", lambda *args: None)
    with pytest.raises(DataError, match="same game"):
        generate(tmp_path / "out", TINY)
    assert not list(tmp_path.iterdir())


def test_a_seed_that_gives_no_game_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def generate_at_odd_seeds(*arguments: Any) -> Path | None:
        tried.append(arguments[-1])
        return generate_game(*arguments) if tried[-1] % 2 else None

    monkeypatch.setattr(generator, "generate_game", generate_at_odd_seeds)
    generate(tmp_path / "out", TINY)
    assert len(find_games(tmp_path / "out", "train")) == 2
    assert len(set(tried)) == len(tried) >= 4, "no two games share a seed"


def test_a_game_whose_plan_does_not_win_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "oracle_plan", lambda *args: ["look"])
    for seed in range(3):
        assert generate_game(tmp_path, TINY, "pick_and_place_simple", "train", seed) is None
    assert list(tmp_path.iterdir()) == []


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path) -> None:
    generate(tmp_path / "one", TINY)
    generate(tmp_path / "two", TINY, workers=2)
    files = _bytes(tmp_path / "one")
    assert files == _bytes(tmp_path / "two")
    assert len(files) == 3 * 2 + 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_the_seed_matters(tmp_path: Path) -> None:
    generate(tmp_path / "one", TINY)
    generate(tmp_path / "two", dataclasses.replace(TINY, seed=6))
    names = [{g.parent.name for g in find_games(tmp_path / d, "train")} for d in ("one", "two")]
    assert not names[0] & names[1]


def test_a_finished_data_set_is_left_alone(
    generated_games: Path, generated_spec: GenerationSpec
) -> None:
    before = _bytes(generated_games)
    calls: list[int] = []
    generate(generated_games, generated_spec, on_progress=lambda done, total: calls.append(done))
    assert not calls
    assert _bytes(generated_games) == before
    manifest = json.loads((generated_games / "manifest.json").read_text())
    assert manifest["counts"]["train"] == dict.fromkeys(generated_spec.task_types, 1)
    with pytest.raises(DataError, match="another spec"):
        generate(generated_games, dataclasses.replace(generated_spec, seed=1))


def test_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(DataError, match="not a generated data set"):
        generate(tmp_path, TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        assert total == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path / "out", TINY, on_progress=interrupt)
    assert not list(tmp_path.iterdir())


def test_an_impossible_spec_names_the_task_type(tmp_path: Path) -> None:
    spec = dataclasses.replace(TINY, task_types=("pick_heat_then_place_in_recep",))
    with pytest.raises(DataError, match=r"pick_heat_then_place_in_recep.*bathroom"):
        generate(tmp_path / "out", spec)
    with pytest.raises(DataError, match="at most 2 receptacles"):
        generate(tmp_path / "out", dataclasses.replace(TINY, max_receptacles=2))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"splits": {"dev": 1}}, "unknown split 'dev'"),
        ({"splits": {"train": 0}}, "nor all 0"),
        ({"task_types": ()}, "no task type given"),
        ({"rooms": ("attic",)}, "unknown room 'attic'"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_bad_spec_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataclasses.replace(TINY, **change)


def test_data_of_another_process_are_not_taken_for_these(tmp_path: Path) -> None:
    """If another process finishes another specification first, this one fails."""
    out = tmp_path / "out"

    def finish_another(done: int, total: int) -> None:
        if done == 1:
            with new_directory(out) as other:
                write_manifest(other, generator.GENERATOR_VERSION, {"seed": 6})

    with pytest.raises(DataError, match="holds data of another spec"):
        generate(out, TINY, on_progress=finish_another)
