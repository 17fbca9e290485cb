"""Change demonstrations so that the pocket model learns to read its prompt.

From the demonstrations alone it learns what usually holds: that the object has the number 1, and
that what can be taken is the object of the goal.
"""

import random
import re
from collections.abc import Iterator, Sequence

from hgpo_rllib.environments.spec import Example

EXERCISES = 3  # made from one example
_THOUGHT_END = "</think>"
_NAME = re.compile(r"\b([a-z]+) (\d+)\b")
_MOVE = re.compile(r"go to [a-z]+ \d+")
_SEARCH = re.compile(r"<think>(?!desklamp|floorlamp)([a-z]+)(?: \d+)?: (?:find|take) it</think>")
_TAKE = re.compile(r"take (?P<name>(?P<kind>[a-z]+) \d+) from (?P<place>[a-z]+) \d+")


def augment(examples: Sequence[Example], rng: random.Random) -> list[Example]:
    """Return examples: half ask for another object where possible, and half are renumbered."""
    changed = ask_for_other_objects(examples, rng)
    mixed = [b if b and rng.random() < 0.5 else a for a, b in zip(examples, changed, strict=True)]
    return [renumber(example, rng) if rng.random() < 0.5 else example for example in mixed]


def exercises(examples: Sequence[Example], rng: random.Random) -> list[Example]:
    """Return prompts that ask for other objects; the response is only a thought.

    It says whether the object can be taken. Cloning complete examples hardly teaches that, because
    most of their loss is in other tokens.
    """
    repeats = [ask_for_other_objects(examples, rng) for _ in range(EXERCISES)]
    changed = [example for repeat in repeats for example in repeat if example]
    thoughts = [(p, response.partition(_THOUGHT_END)[0] + _THOUGHT_END) for p, response in changed]
    return [renumber(example, rng) if rng.random() < 0.5 else example for example in thoughts]


def renumber(example: Example, rng: random.Random) -> Example:
    """Return a prompt and its response with other numbers of objects, usually from 1 to 9."""
    numbers: dict[str, dict[str, str]] = {}  # new by old, by type

    def new_name(name: re.Match[str]) -> str:
        given = numbers.setdefault(name[1], {})
        if name[2] not in given:
            free = [number for number in "123456789" if number not in given.values()]
            given[name[2]] = rng.choice(free) if free else str(len(given) + 1)
        return f"{name[1]} {given[name[2]]}"

    prompt, response = (_NAME.sub(new_name, text) for text in example)
    return prompt, response


def ask_for_other_objects(
    examples: Sequence[Example], rng: random.Random
) -> Iterator[Example | None]:
    """Yield the examples with another object in the goal; None where that is not possible.

    It is possible where the goal's object is searched for and some object can be taken. In half of
    these examples the new object can be taken, and the response takes it. In the others it is not
    there, and the response goes anywhere.
    """
    kinds = sorted({take["kind"] for prompt, _ in examples for take in _TAKE.finditer(prompt)})
    for prompt, response in examples:
        goal, _, _ = prompt.partition("\n")
        _, _, actions = prompt.rpartition("Actions: ")
        moves, offered = _MOVE.findall(actions), list(_TAKE.finditer(actions))
        takes = [take for take in offered if not re.search(rf"\b{take['place']}\b", goal)]
        search = _SEARCH.match(response)
        if not (search and takes and moves and re.search(rf"\b{search[1]}\b", goal)):
            yield None
            continue
        if rng.random() < 0.5:
            take = rng.choice(takes)
            kind, thought, action = take["kind"], f"{take['name']}: take it", take[0]
        else:
            missing = set(kinds) - {take["kind"] for take in offered}
            kind = rng.choice(sorted(missing))
            thought, action = f"{kind}: find it", rng.choice(moves)
        new_goal = re.sub(rf"\b{search[1]}\b", kind, goal)
        yield (
            prompt.replace(goal, new_goal),
            f"<think>{thought}</think><action>{action}</action>",
        )
