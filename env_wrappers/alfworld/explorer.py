"""A scripted expert that uses only text, so that a model with a short memory can imitate it.

It knows the steps of each task but not where objects are: it searches all receptacles in random
order, including those that never hold the object. In demonstrations it also makes random moves.
Learning where to look, and to do the next step at once, is left to reinforcement learning.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from env_wrappers.errors import DataError
from env_wrappers.files import read_json

APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_SEEN = re.compile(r"(?:you see|In it, you see) (.*)\.")


@dataclass(frozen=True)
class Goal:
    """The goal of a task, in the words of the observations."""

    task_type: str
    object: str
    destination: str
    """Receptacle type; empty for tasks that use a lamp."""
    lamp: str
    """Lamp type; empty for other tasks."""


def goal_of(game: Path) -> Goal:
    """Return the goal of a game from the traj_data.json beside it.

    Raises:
        DataError: the file cannot be read, or does not say the goal.
    """
    keys = ("object_target", "parent_target", "toggle_target")
    try:
        trajectory = read_json(game.parent / "traj_data.json")
        params = trajectory["pddl_params"]
        target, place, lamp = (str(params.get(key) or "").lower() for key in keys)
        if not target or not (place or lamp):
            raise ValueError("it does not say the goal")
        return Goal(str(trajectory["task_type"]), target, place, lamp)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"the explorer needs traj_data.json beside {game}: {error!r}") from error


def kind(name: str) -> str:
    """Return the type of an object: ``mug 2`` -> ``mug``."""
    return name.split()[0]


class Explorer:
    """Play one episode, remembering everything observed."""

    def __init__(
        self,
        goal: Goal,
        first_admissible: Sequence[str],
        rng: random.Random,
        random_moves: float = 0.0,
    ):
        """Initialize from the initial actions `first_admissible`, which name all receptacles.

        With probability `random_moves`, the explorer goes anywhere instead of where it wants to go
        or of opening a receptacle.
        """
        self.goal = goal
        self.rng = rng
        self.random_moves = random_moves
        self.order = [a.removeprefix("go to ") for a in first_admissible if a.startswith("go to ")]
        self.here: str | None = None
        self.visited: set[str] = set()
        self.seen: dict[str, list[str]] = {}
        self.placed: set[str] = set()
        self.treated: set[str] = set()
        self.first: list[str] = []  # types of receptacles to search first

    def strategy(self) -> str:
        """Choose two types of receptacles to search first; return all that is to do, in order."""
        goal = self.goal
        kinds = sorted({kind(name) for name in self.order} - {goal.destination})
        self.first = self.rng.sample(kinds, min(2, len(kinds)))
        parts = [f"{goal.object}: find it in {' or '.join(self.first)}"]
        parts += [f"{verb} it" for verb in APPLIANCES if f"_{verb}_" in goal.task_type]
        last = f"put it in {goal.destination}" if goal.destination else f"use {goal.lamp}"
        return ", ".join([*parts, last])

    def act(self, observation: str, admissible: Sequence[str], last: str | None) -> tuple[str, str]:
        """Return thought and action.

        Thoughts contain all nouns of the action, except where to search: copying from a nearby text
        is easy to learn.

        Args:
            observation: the current observation.
            admissible: the current admissible actions.
            last: the previous action; None at the start.
        """
        if last is not None:
            self._remember(observation, last)
        thought, action = self._next_step(admissible)
        moves = [a for a in admissible if a.startswith("go to ")]
        if (
            moves
            and action.startswith(("go to ", "open "))
            and self.random_moves > 0
            and self.rng.random() < self.random_moves
        ):
            action = self.rng.choice(moves)
        return thought, action

    def perturb(self, admissible: Sequence[str], rng: random.Random) -> str:
        """Return a random move or a typical error of a model, such as taking another object."""
        here = self.here or rng.choice(self.order)
        moves = [a for a in admissible if a.startswith(("go to ", "open ", "close "))]
        move = rng.choice(moves) if moves else "look"
        takes = [
            a for a in admissible if a.startswith("take ") and a.split()[1] != self.goal.object
        ]
        other = rng.choice(takes) if takes else move
        missing = f"take {self.goal.object} {rng.randint(1, 3)} from {here}"
        return rng.choices([move, other, missing, f"go to {here}"], weights=[3, 2, 2, 2])[0]

    def is_worth_learning(self, info: Mapping[str, Any]) -> bool:
        """Return whether the game was won."""
        return bool(info["won"])

    def _next_step(self, admissible: Sequence[str]) -> tuple[str, str]:
        held = self._held(admissible)
        if held is None:
            return self._get_object(admissible)
        for verb, appliance in APPLIANCES.items():
            if f"_{verb}_" in self.goal.task_type and held not in self.treated:
                return self._treat(held, verb, appliance, admissible)
        if not self.goal.destination:
            return self._use_lamp(admissible)
        return self._place(held, admissible)

    def _remember(self, observation: str, last: str) -> None:
        words = last.split()
        if last.startswith("go to "):
            self.here = last.removeprefix("go to ")
            self.visited.add(self.here)
        elif words[0] in APPLIANCES:
            self.treated.add(" ".join(words[1:3]))
        elif words[0] == "move":
            self.placed.add(" ".join(words[1:3]))
        seen = _SEEN.search(observation)
        if seen and self.here:
            self.seen[self.here] = re.findall(r"a ([a-z]+ \d+)", seen.group(1))

    def _held(self, admissible: Sequence[str]) -> str | None:
        """Return the wanted object if held: it can then be examined, but not taken."""
        for action in admissible:
            name = action.removeprefix("examine ")
            if (
                action.startswith("examine ")
                and name not in self.order
                and kind(name) == self.goal.object
                and not any(a.startswith(f"take {name} from") for a in admissible)
            ):
                return name
        return None

    def _get_object(self, admissible: Sequence[str]) -> tuple[str, str]:
        wanted = self.goal.object
        for action in admissible:
            if action.startswith("move "):  # it holds another object
                return f"{action.split()[1]}: put it back", action
            if action.startswith(f"take {wanted} "):
                name, _, place = action.removeprefix("take ").partition(" from ")
                if name not in self.placed and kind(place) != self.goal.destination:
                    return f"{name}: take it", action
        if f"open {self.here}" in admissible:
            return f"{wanted}: find it", f"open {self.here}"
        return self._search(wanted, admissible)

    def _treat(
        self, held: str, verb: str, appliance: str, admissible: Sequence[str]
    ) -> tuple[str, str]:
        action = _offered(f"{verb} {held} with", admissible)
        action = action or f"go to {self._first(appliance, admissible)}"
        return f"{self.goal.object}: {verb} it", action

    def _use_lamp(self, admissible: Sequence[str]) -> tuple[str, str]:
        lamp = self.goal.lamp
        action = _offered(f"use {lamp} ", admissible)
        return (f"{lamp}: use it", action) if action else self._search(lamp, admissible)

    def _place(self, held: str, admissible: Sequence[str]) -> tuple[str, str]:
        destination = self.goal.destination
        thought = f"{self.goal.object}: put it in {destination}"
        action = _offered(f"move {held} to {destination} ", admissible)
        if action:
            return thought, action
        if self.here and kind(self.here) == destination and f"open {self.here}" in admissible:
            return thought, f"open {self.here}"
        return thought, f"go to {self._first(destination, admissible)}"

    def _search(self, wanted: str, admissible: Sequence[str]) -> tuple[str, str]:
        """Go where the object was seen, or to a receptacle not visited yet, or anywhere."""
        thought = f"{wanted}: find it"
        for place, objects in self.seen.items():
            if (
                place != self.here
                and kind(place) != self.goal.destination
                and any(kind(o) == wanted and o not in self.placed for o in objects)
                and f"go to {place}" in admissible
            ):
                return thought, f"go to {place}"
        reachable = {a.removeprefix("go to ") for a in admissible if a.startswith("go to ")}
        # Receptacles at the current position cannot be gone to, but their contents are visible.
        self.visited |= set(self.order) - reachable
        new = [place for place in self.order if place not in self.visited]
        first = [place for place in new if kind(place) in self.first]
        return thought, f"go to {self.rng.choice(first or new or sorted(reachable))}"

    def _first(self, receptacle: str, admissible: Sequence[str]) -> str:
        places = (place for place in self.order if kind(place) == receptacle)
        return next((p for p in places if f"go to {p}" in admissible), self.order[0])


def _offered(start: str, admissible: Sequence[str]) -> str | None:
    """Return the first action that starts with some words."""
    return next((action for action in admissible if action.startswith(start)), None)
