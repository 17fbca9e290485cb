"""Write a furnished room and a goal as a PDDL problem in ALFWorld's format."""

import random
from collections.abc import Iterator

from alfworld.gen import constants as tables
from alfworld.gen import goal_library

from env_wrappers.alfworld.rooms import FITS, FURNITURE, PORTABLE, Contents, Goal, Room, kind_of

_INDENT = "\n        "
_MANGLED = str.maketrans({"-": "_minus_", "|": "_bar_", "+": "_plus_", ".": "_dot_"})
_ABILITIES = ("Cleanable", "Heatable", "Coolable", "Toggleable", "Sliceable")


def mangle(identifier: str) -> str:
    """Return an id with the characters that PDDL does not allow replaced."""
    return identifier.translate(_MANGLED)


def write_problem(
    rng: random.Random, task_type: str, room: Room, contents: Contents, goal: Goal, name: str
) -> str:
    """Return the PDDL problem as text; ``rng`` orders its facts."""
    facts = [
        *_furniture_facts(room, present=set(contents.objects.values())),
        *_thing_facts(room, contents),
        _fact("atLocation", "agent1", room.start),
    ]
    rng.shuffle(facts)
    target = goal_library.gdict[task_type]["pddl"].format(
        obj=goal.target, recep=goal.destination, toggle=goal.lamp
    )
    declared = _INDENT.join(_declarations(room, contents))
    # The goal library writes "#" for a hyphen, which in ids is a minus sign.
    return (
        f"(define (problem plan_{name})\n(:domain alfred)\n(:objects{_INDENT}{declared}\n)\n"
        f"(:init\n{_INDENT[1:]}{_INDENT.join(facts)}\n)\n{target.replace('#', '-')}"
    )


def goal_sentences(task_type: str, goal: Goal) -> list[str]:
    """Return all of ALFWorld's phrasings of a goal, e.g. "put a clean mug in cabinet"."""
    words = {
        "obj": goal.target.lower(),
        "recep": goal.destination.lower(),
        "toggle": goal.lamp.lower(),
    }
    return [template.format(**words) for template in goal_library.gdict[task_type]["templates"]]


def _declarations(room: Room, contents: Contents) -> list[str]:
    return [
        "agent1 - agent",
        *(f"{kind}Type - otype" for kind in sorted(set(contents.objects.values()))),
        *(f"{kind}Type - rtype" for kind in FURNITURE),
        *(f"{mangle(thing)} - object" for thing in sorted(contents.objects)),
        *(f"{mangle(receptacle)} - receptacle" for receptacle in sorted(room.receptacles)),
        *(
            f"{mangle(spot)} - location"
            for spot in sorted({*room.receptacles.values(), room.start})
        ),
    ]


def _furniture_facts(room: Room, present: set[str]) -> Iterator[str]:
    for receptacle, spot in room.receptacles.items():
        yield _fact("receptacleType", receptacle, kind_of(receptacle) + "Type")
        yield _fact("receptacleAtLocation", receptacle, spot)
        if receptacle in room.openable:
            yield _fact("openable", receptacle)
    for furniture in sorted(room.kinds):
        for kind in sorted(FITS.get(furniture, frozenset()) & present):
            yield _fact("canContain", furniture + "Type", kind + "Type")


def _thing_facts(room: Room, contents: Contents) -> Iterator[str]:
    for thing, kind in contents.objects.items():
        yield _fact("objectType", thing, kind + "Type")
        if kind in PORTABLE:
            yield _fact("pickupable", thing)
        if kind in tables.MOVABLE_RECEPTACLES_SET:
            yield _fact("isReceptacleObject", thing)
        for ability in _ABILITIES:
            if kind in tables.VAL_ACTION_OBJECTS[ability]:
                yield _fact(ability.lower(), thing)
    for thing, host in contents.inside.items():
        yield _fact("inReceptacle", thing, host)
        yield _fact("objectAtLocation", thing, room.receptacles[host])


def _fact(predicate: str, *arguments: str) -> str:
    return f"({predicate} {' '.join(mangle(argument) for argument in arguments)})"
