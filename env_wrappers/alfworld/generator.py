"""Generate solvable ALFWorld games offline, deterministically.

The data set has the folder structure of ALFWorld, so code that reads ALFWorld can read it.
"""

import functools
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from alfworld.gen import constants as tables

from env_wrappers.alfworld.engine import GameEngine
from env_wrappers.alfworld.games import GAME_FILE, TASK_TYPES, TREE, game_files, hash_of_games
from env_wrappers.alfworld.planner import why_not_won
from env_wrappers.alfworld.problem import goal_sentences, mangle, write_problem
from env_wrappers.alfworld.rooms import (
    ROOM_SCENES,
    TREATMENTS,
    Contents,
    Goal,
    Room,
    build_room,
    choose_goal,
    fill_room,
    kind_of,
    scenes,
)
from env_wrappers.alfworld.trust import alfworld_data
from env_wrappers.datasets import is_generated, new_directory, write_manifest
from env_wrappers.errors import DataError, check_known
from env_wrappers.files import read_json
from env_wrappers.processes import map_in_processes

GENERATOR_VERSION = 3
SPLITS = ("train", "valid_seen", "valid_unseen", "test")

_DRAWS = 200  # rooms and goals tried per seed
_SEEDS_PER_GAME = 20  # seeds tried per game
_SEEDS_PER_DATA_SET = 10_000_000


@dataclass(frozen=True)
class GenerationSpec:
    """What to generate.

    Attributes:
        seed: the same spec gives the same bytes; another seed gives other games.
        splits: number of games per split. "train" and "valid_seen" share floor plans,
            "valid_unseen" has others (see ``rooms.UNSEEN_SCENES``), "test" has all of them.
        task_types: task types; each split is divided evenly among them.
        rooms: room types used.
        max_receptacles: maximum pieces of furniture in a room; more make searching harder.
    """

    seed: int = 0
    splits: Mapping[str, int] = field(
        default_factory=lambda: {"train": 96, "valid_seen": 24, "valid_unseen": 24}
    )
    task_types: tuple[str, ...] = TASK_TYPES
    rooms: tuple[str, ...] = ("kitchen", "livingroom", "bedroom", "bathroom")
    max_receptacles: int = 60

    def __post_init__(self) -> None:
        """Raise DataError if a value is unknown or out of range."""
        for what, values, known in (
            ("split", self.splits, SPLITS),
            ("task type", self.task_types, TASK_TYPES),
            ("room", self.rooms, ROOM_SCENES),
        ):
            if not values:
                raise DataError(f"no {what} given: choose {', '.join(known)}")
            for value in values:
                check_known(what, value, known)
        if min(self.splits.values()) < 0 or not any(self.splits.values()):
            raise DataError(f"numbers of games must not be negative, nor all 0: {self.splits}")
        if self.seed < 0 or self.max_receptacles < 1:
            raise DataError("the seed must be at least 0, and max_receptacles at least 1")


def generate(
    out: Path,
    spec: GenerationSpec,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    workers: int | None = 1,
) -> None:
    """Write a data set, or nothing on error; the result does not depend on ``workers``.

    If ``out`` already holds data of the same spec, it is left unchanged.

    Args:
        out: the directory to create.
        on_progress: called after each game with the number made and the total.
        workers: number of processes; None: see `map_in_processes`.

    Raises:
        DataError: ``out`` contains other files, or the spec cannot give that many games.
    """
    if is_generated(out, GENERATOR_VERSION, asdict(spec)):
        return
    with new_directory(out) as partial:
        slots = _slots(spec)
        make = functools.partial(_fill_slot, partial, spec)
        for done, _ in enumerate(map_in_processes(make, slots, workers), start=1):
            on_progress(done, len(slots))
        games = game_files(partial / TREE, levels=3)
        counts, sha256 = _count(partial, games), hash_of_games(partial, games)
        write_manifest(partial, GENERATOR_VERSION, asdict(spec), counts=counts, sha256=sha256)
    is_generated(out, GENERATOR_VERSION, asdict(spec))  # fails if another process was first


def generate_game(
    out: Path, spec: GenerationSpec, task_type: str, split: str, seed: int
) -> Path | None:
    """Generate one game under ``out`` and return its file; deterministic in the arguments.

    Only rooms and ``max_receptacles`` of the spec matter.

    Returns:
        None, with nothing written, if the seed gives no solvable game.
    """
    rng = random.Random(f"{task_type}/{split}/{seed}")
    drawn = _draw(rng, spec, task_type, split)
    if drawn is None:
        return None
    room, goal, contents = drawn
    name = f"trial_gen_{seed:08d}"
    problem = write_problem(rng, task_type, room, contents, goal, name)
    game: dict[str, Any] = {
        "pddl_domain": alfworld_data("alfred.pddl"),
        "grammar": alfworld_data("alfred.twl2").replace(
            "UNKNOWN GOAL", rng.choice(goal_sentences(task_type, goal))
        ),
        "pddl_problem": problem,
    }
    engine = GameEngine(game)
    plan = oracle_plan(task_type, room, contents, goal, engine.names)
    if why_not_won(engine, plan) is not None:
        return None
    label = f"{task_type}-{goal.target}-None-{goal.destination or goal.lamp}-{room.scene}"
    folder = out / TREE / split / label / name
    folder.mkdir(parents=True, exist_ok=True)
    game |= {"solvable": True, "walkthrough": plan}
    (folder / GAME_FILE).write_text(json.dumps(game), encoding="utf-8")
    (folder / "initial_state.pddl").write_text(problem, encoding="utf-8")
    traj = _traj_data(task_type, goal, room.scene, name)
    (folder / "traj_data.json").write_text(json.dumps(traj), encoding="utf-8")
    return folder / GAME_FILE


def _draw(
    rng: random.Random, spec: GenerationSpec, task_type: str, split: str
) -> tuple[Room, Goal, Contents] | None:
    """Draw a room and a goal that its contents allow; return None after ``_DRAWS`` tries."""
    valid = [r for r in sorted(spec.rooms) if ROOM_SCENES[r][0] in tables.GOALS_VALID[task_type]]
    if not valid:
        return None
    targets = 2 if task_type == "pick_two_obj_and_place" else 1
    for _ in range(_DRAWS):
        room = build_room(rng, rng.choice(scenes(rng.choice(valid), split)))
        if len(room.receptacles) > spec.max_receptacles:
            continue
        goal = choose_goal(rng, task_type, room)
        contents = fill_room(rng, room, goal, targets) if goal else None
        if goal and contents:
            return room, goal, contents
    return None


def oracle_plan(
    task_type: str, room: Room, contents: Contents, goal: Goal, names: Mapping[str, str]
) -> list[str]:
    """Return the commands that solve a game, from complete knowledge of the room.

    Args:
        names: display name of each entity id in the PDDL problem.
    """
    walk = _Walk(room, names)
    targets = sorted(t for t in contents.inside if contents.objects[t] == goal.target)
    for target in targets[: 2 if task_type == "pick_two_obj_and_place" else 1]:
        source = contents.inside[target]
        walk.go(source, need_open=True)
        walk.commands.append(f"take {walk.name(target)} from {walk.name(source)}")
        if task_type in TREATMENTS:
            verb, kind, _ = TREATMENTS[task_type]
            tool = _first(room, kind)
            walk.go(tool, need_open=False)
            walk.commands.append(f"{verb} {walk.name(target)} with {walk.name(tool)}")
        if goal.lamp:
            lamp = min(t for t in contents.inside if contents.objects[t] == goal.lamp)
            walk.go(contents.inside[lamp], need_open=True)
            walk.commands.append(f"use {walk.name(lamp)}")
        else:
            destination = _first(room, goal.destination)
            walk.go(destination, need_open=True)
            walk.commands.append(f"move {walk.name(target)} to {walk.name(destination)}")
    return walk.commands


class _Walk:
    """The commands so far, and the player's position."""

    def __init__(self, room: Room, names: Mapping[str, str]) -> None:
        self.commands: list[str] = []
        self._room = room
        self._names = names
        self._here = room.start
        self._opened: set[str] = set()

    def name(self, identifier: str) -> str:
        return self._names[mangle(identifier).lower()]

    def go(self, receptacle: str, need_open: bool) -> None:
        # The engine does nothing if the player is already there.
        if self._here != self._room.receptacles[receptacle]:
            self.commands.append(f"go to {self.name(receptacle)}")
            self._here = self._room.receptacles[receptacle]
        if need_open and receptacle in self._room.openable and receptacle not in self._opened:
            self.commands.append(f"open {self.name(receptacle)}")
            self._opened.add(receptacle)


def _first(room: Room, kind: str) -> str:
    return min(r for r in room.receptacles if kind_of(r) == kind)


def _traj_data(task_type: str, goal: Goal, scene: int, name: str) -> dict[str, Any]:
    sentences = [sentence.capitalize() + "." for sentence in goal_sentences(task_type, goal)]
    return {
        "task_id": name,
        "task_type": task_type,
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": goal.target,
            "parent_target": goal.destination,
            "toggle_target": goal.lamp,
        },
        "scene": {"floor_plan": f"FloorPlan{scene}", "scene_num": scene},
        "turk_annotations": {
            "anns": [{"task_desc": s, "high_descs": [], "votes": [1, 1]} for s in sentences]
        },
        "plan": {},
        "images": [],
    }


# --- data sets ---------------------------------------------------------------------------------


def _slots(spec: GenerationSpec) -> list[tuple[str, str, int]]:
    """Return split, task type and first seed of each game.

    Every game has seeds of its own, so that the order of generation does not matter.
    """
    slots = []
    for split in SPLITS:
        for index in range(spec.splits.get(split, 0)):
            seed = spec.seed * _SEEDS_PER_DATA_SET + index * _SEEDS_PER_GAME
            slots.append((split, spec.task_types[index % len(spec.task_types)], seed))
    return slots


def _fill_slot(out: Path, spec: GenerationSpec, slot: tuple[str, str, int]) -> None:
    split, task_type, first_seed = slot
    for seed in range(first_seed, first_seed + _SEEDS_PER_GAME):
        if generate_game(out, spec, task_type, split, seed) is not None:
            return
    raise DataError(
        f"found no {task_type} game for {split} in {' or '.join(spec.rooms)} with at most "
        f"{spec.max_receptacles} receptacles: allow other rooms, more receptacles or fewer task "
        "types"
    )


def _count(data: Path, games: Iterable[Path]) -> dict[str, Counter[str]]:
    """Return the number of games by split and task type.

    Raises:
        DataError: two games are identical.
    """
    counts: dict[str, Counter[str]] = {}
    problems: dict[bytes, str] = {}
    for game in games:
        name = game.relative_to(data).as_posix()
        # The first line only contains the name of the problem.
        text = read_json(game)["pddl_problem"].partition("\n")[2]
        twin = problems.setdefault(hashlib.sha256(text.encode()).digest(), name)
        if twin != name:
            raise DataError(f"{twin} and {name} are the same game: choose another seed")
        _, split, label, *_ = Path(name).parts
        counts.setdefault(split, Counter())[label.split("-", 1)[0]] += 1
    return counts
