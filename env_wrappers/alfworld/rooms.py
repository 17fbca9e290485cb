"""Furnish ALFRED floor plans with objects in plausible places.

The floor plans (furniture positions and object types) and the tables of which objects belong on
which furniture come from the alfworld package; this module only samples from them.
"""

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from alfworld.gen import constants as tables

ROOM_SCENES: dict[str, tuple[str, range]] = {
    name.lower(): (name, scenes) for name, scenes in tables.SCENE_TYPE.items()
}
"""Room name ("livingroom") to ALFWorld's name ("LivingRoom") and scene numbers."""

# The first four are those of the official ``valid_unseen`` games, one per room. ALFRED's scripts
# count them as training scenes; its published split does not.
UNSEEN_SCENES = frozenset({10, 219, 308, 424, *tables.TEST_SCENE_NUMBERS})

FURNITURE = sorted(tables.RECEPTACLES - tables.MOVABLE_RECEPTACLES_SET)
FITS = {kind: frozenset(objects) for kind, objects in tables.VAL_RECEPTACLE_OBJECTS.items()}
PORTABLE = frozenset(o for kinds in FITS.values() for o in kinds if not o.endswith("Sliced"))
LAMPS = ("DeskLamp", "FloorLamp")
TREATMENTS = {
    "pick_clean_then_place_in_recep": ("clean", "SinkBasin", "Cleanable"),
    "pick_heat_then_place_in_recep": ("heat", "Microwave", "Heatable"),
    "pick_cool_then_place_in_recep": ("cool", "Fridge", "Coolable"),
}
"""Verb, furniture and property of the object, by task type."""

_GRID = 0.25  # meters between two positions of the agent
_ALWAYS_OPENABLE = ("Fridge", "Microwave", "Safe")
_LAMP_HOSTS = ("Desk", "SideTable", "Dresser", "DiningTable", "CoffeeTable", "Shelf")
_FIXTURE_HOSTS = {
    "HousePlant": (
        "Desk", "DiningTable", "SideTable", "CoffeeTable", "Dresser", "Shelf", "CounterTop",
    ),
    "Television": ("TVStand", "Dresser", "SideTable"),
    "DeskLamp": _LAMP_HOSTS,
    # The engine can only turn on lamps that are on or in furniture, so not on the floor.
    "FloorLamp": _LAMP_HOSTS,
}  # fmt: skip
# Maximum objects on a piece of furniture at the start, and sampling weight (default 1).
_CAPACITY = {
    "ArmChair": 3, "BathtubBasin": 3, "Bed": 5, "Cabinet": 3, "Cart": 4, "CoffeeTable": 7,
    "CounterTop": 14, "Desk": 10, "DiningTable": 14, "Drawer": 3, "Dresser": 8, "Fridge": 7,
    "GarbageCan": 4, "Microwave": 2, "Safe": 2, "Shelf": 3, "SideTable": 6, "SinkBasin": 6,
    "Sofa": 4, "TVStand": 2, "Toilet": 3,
}  # fmt: skip
_WEIGHT = {
    "Bed": 4, "CoffeeTable": 4, "CounterTop": 8, "Desk": 6, "DiningTable": 8, "Dresser": 4,
    "Fridge": 4, "GarbageCan": 1.2, "SideTable": 3, "SinkBasin": 2, "Sofa": 3,
}  # fmt: skip
# Furniture in ALFWorld's own games that its floor plans give no position: scene to type to number.
# Scenes without an entry use that of another scene of the same room.
_PIECES: dict[str, dict[str, int]] = json.loads(
    (resources.files("env_wrappers.alfworld") / "furniture.json").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Room:
    """An empty room.

    Attributes:
        scene: number of the floor plan.
        object_types: object types in the floor plan, sorted.
        receptacles: furniture id to the location it is reached from, in a fixed order.
        openable: ids of the furniture that can be opened.
        start: the player's initial location.
    """

    scene: int
    object_types: list[str]
    receptacles: dict[str, str]
    openable: frozenset[str]
    start: str

    @property
    def kinds(self) -> set[str]:
        """Types of the furniture."""
        return {kind_of(receptacle) for receptacle in self.receptacles}


@dataclass(frozen=True)
class Goal:
    """The goal of a task: an object type, and furniture to put it on or a lamp to use."""

    target: str
    destination: str = ""
    lamp: str = ""


@dataclass(frozen=True)
class Contents:
    """Objects in a room: id to type, and id to furniture id for those on or in furniture."""

    objects: dict[str, str]
    inside: dict[str, str]

    def count(self, kind: str) -> int:
        """Return the number of objects of a type on or in furniture."""
        return sum(self.objects[thing] == kind for thing in self.inside)


def kind_of(receptacle: str) -> str:
    """Return the furniture type of a furniture id."""
    parts = receptacle.split("|")
    return parts[-1] if parts[-1].endswith("Basin") else parts[0]


def scenes(room: str, split: str) -> list[int]:
    """Return a room's floor plans for a split.

    Those of ``valid_unseen`` are in no other split but ``test``, which has all of them.
    """
    if split == "test":
        return list(ROOM_SCENES[room][1])
    unseen = split == "valid_unseen"
    return [scene for scene in ROOM_SCENES[room][1] if (scene in UNSEEN_SCENES) == unseen]


def build_room(rng: random.Random, scene: int) -> Room:
    """Return a room of a floor plan, drawing the positions that the plan does not define."""
    object_types = _layout(scene, "objects")
    standing = {}
    for receptacle, (x, z, rotation, horizon) in sorted(_layout(scene, "openable").items()):
        if kind_of(receptacle) in FURNITURE:
            cell = (round(x / _GRID), round(z / _GRID), round(rotation / 90) % 4, round(horizon))
            standing[receptacle] = "|".join(["loc", *map(str, cell)])
    openable = {r for r in standing if kind_of(r) in tables.OPENABLE_CLASS_SET}
    taken = set(standing.values())
    for kind, pieces in _added_pieces(rng, scene, object_types, standing).items():
        for _ in range(pieces):
            added = _furniture_id(rng, kind)
            standing[added] = _place_furniture(rng, kind, standing, taken)
            if kind in _ALWAYS_OPENABLE:
                openable.add(added)
    start = _free_location(rng, taken)
    return Room(scene, sorted(object_types), standing, frozenset(openable), start)


def _added_pieces(
    rng: random.Random, scene: int, object_types: Iterable[str], standing: Iterable[str]
) -> dict[str, int]:
    """Return how many pieces to add of each type of furniture that the scene has."""
    kinds = sorted(set(object_types) & set(FURNITURE))
    if str(scene) in _PIECES:
        return {kind: _PIECES[str(scene)].get(kind, 0) for kind in kinds}
    alike = [s for s in _PIECES if int(s) // 100 == scene // 100]  # kitchens are 1-30, others 2xx…
    positioned = {kind_of(receptacle) for receptacle in standing}
    pieces = {}
    for kind in kinds:
        drawn = _PIECES[rng.choice(alike)].get(kind, 0)
        pieces[kind] = drawn if kind in positioned else max(1, drawn)
    return pieces


def choose_goal(rng: random.Random, task_type: str, room: Room) -> Goal | None:
    """Return a goal that is possible in the room, or None."""
    targets = sorted(set(room.object_types) & PORTABLE)
    if task_type == "look_at_obj_in_light":
        lamps = [lamp for lamp in LAMPS if lamp in room.object_types]
        return Goal(rng.choice(targets), lamp=rng.choice(lamps)) if targets and lamps else None
    _, tool, treatment = TREATMENTS.get(task_type, ("", "", ""))
    kinds = room.kinds
    if tool:
        if tool not in kinds:
            return None
        targets = [t for t in targets if t in tables.VAL_ACTION_OBJECTS[treatment]]
    pairs = [
        (target, kind)
        for target in targets
        for kind in sorted(kinds - {tool})
        # It must fit there, and also elsewhere, where it can be placed at the start.
        if _fits(target, kind) and any(_fits(target, other) for other in kinds - {kind})
    ]
    return Goal(*rng.choice(pairs)) if pairs else None


def fill_room(rng: random.Random, room: Room, goal: Goal, targets: int) -> Contents | None:
    """Return the contents of a room, with the goal not yet reached.

    Args:
        targets: minimum number of objects of the goal's type.

    Returns:
        None if not enough of the goal's objects can be placed.
    """
    contents = Contents({}, {})
    load = dict.fromkeys(room.receptacles, 0)
    for kind in room.object_types:
        if kind in FURNITURE:
            continue
        hosts = [r for r in sorted(room.receptacles) if _hosts(kind_of(r), kind, goal)]
        for _ in range(_copies(rng, kind, goal, targets)):
            thing = _identifier(rng, kind, height=2.0)
            host = _choose_host(rng, room, hosts, load)
            if host is not None:
                load[host] += 1
                contents.inside[thing] = host
            elif kind in PORTABLE or kind == goal.lamp:
                continue  # no place left; fixtures of the room need none
            contents.objects[thing] = kind
    enough = contents.count(goal.target) >= targets
    return contents if enough and (not goal.lamp or contents.count(goal.lamp)) else None


def _copies(rng: random.Random, kind: str, goal: Goal, targets: int) -> int:
    if kind in PORTABLE:
        copies = rng.choice([1, 1, 2, 2, 3])
        return max(copies, targets) if kind == goal.target else copies
    return rng.choice([1, 1, 2]) if kind == goal.lamp else 1


def _fits(kind: str, furniture: str) -> bool:
    return kind in FITS.get(furniture, ())


def _hosts(furniture: str, kind: str, goal: Goal) -> bool:
    """Return whether objects of a type may be on a type of furniture at the start."""
    if kind in PORTABLE:
        solved = kind == goal.target and furniture == goal.destination
        return _fits(kind, furniture) and not solved
    return furniture in _FIXTURE_HOSTS.get(kind, ())


def _choose_host(
    rng: random.Random, room: Room, hosts: list[str], load: dict[str, int]
) -> str | None:
    free = [
        host
        for host in hosts
        if load[host] < _CAPACITY.get(kind_of(host), 1)
        and (host in room.openable or kind_of(host) not in _ALWAYS_OPENABLE)
    ]
    if not free:
        return None
    return rng.choices(free, [_WEIGHT.get(kind_of(host), 1) for host in free])[0]


def _place_furniture(
    rng: random.Random, kind: str, standing: dict[str, str], taken: set[str]
) -> str:
    """Return a location for a piece of furniture; small appliances may share a counter's."""
    counters = [r for r in standing if kind_of(r) == "CounterTop"]
    if kind in ("CoffeeMachine", "Toaster") and counters and rng.random() < 0.5:
        return standing[rng.choice(counters)]
    return _free_location(rng, taken)


def _free_location(rng: random.Random, taken: set[str]) -> str:
    while True:
        horizon = rng.choice([0, 15, 30, 45, 60])
        x, z, rotation = rng.randint(-10, 10), rng.randint(-10, 10), rng.randint(0, 3)
        spot = f"loc|{x}|{z}|{rotation}|{horizon}"
        if spot not in taken:
            taken.add(spot)
            return spot


def _furniture_id(rng: random.Random, kind: str) -> str:
    if kind.endswith("Basin"):  # a basin is part of its sink or bathtub
        return _identifier(rng, kind.removesuffix("Basin"), height=1.5) + f"|{kind}"
    return _identifier(rng, kind, height=1.5)


def _identifier(rng: random.Random, kind: str, height: float) -> str:
    """Return an id in ALFRED's format: the type and a position in meters."""
    position = (rng.uniform(-3, 3), rng.uniform(0, height), rng.uniform(-3, 3))
    return "|".join([kind, *(f"{value:+06.2f}" for value in position)])


def _layout(scene: int, part: str) -> Any:
    file = resources.files("alfworld.gen") / "layouts" / f"FloorPlan{scene}-{part}.json"
    return json.loads(file.read_text(encoding="utf-8"))
