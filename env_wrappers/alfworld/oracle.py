"""Compute a short solution of a game from complete knowledge of the room."""

from collections.abc import Mapping

from env_wrappers.alfworld.problem import mangle
from env_wrappers.alfworld.rooms import Contents, Goal, Room, kind_of

_TREATMENTS = {
    "pick_clean_then_place_in_recep": ("clean", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("heat", "Microwave"),
    "pick_cool_then_place_in_recep": ("cool", "Fridge"),
}


def oracle_plan(
    task_type: str, room: Room, contents: Contents, goal: Goal, names: Mapping[str, str]
) -> list[str]:
    """Return the commands that solve a generated game.

    Args:
        names: display name of each entity id in the PDDL problem.
    """
    walk = _Walk(room, names)
    targets = sorted(t for t in contents.inside if contents.objects[t] == goal.target)
    for target in targets[: 2 if task_type == "pick_two_obj_and_place" else 1]:
        source = contents.inside[target]
        walk.go(source, need_open=True)
        walk.commands.append(f"take {walk.name(target)} from {walk.name(source)}")
        if task_type in _TREATMENTS:
            verb, kind = _TREATMENTS[task_type]
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
