"""Augmentation of ALFWorld demonstrations for the pocket model."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.alfworld.env import ALFWorldEnv
from hgpo_rllib.environments.alfworld import GameGenerator, ask_for_other_objects, explore, renumber
from hgpo_rllib.environments.spec import Example
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.warmstart.demonstrations import demonstrate


@pytest.fixture(scope="module")
def examples(generated_games: Path) -> list[Example]:
    """Return demonstrations of the generated games."""
    env = ALFWorldEnv(generated_games, split="train", max_steps=60)
    agent = AgentSettings(prompt="alfworld_compact", memory_length=2)
    return [
        example
        for task in range(len(env.games))
        for seed in range(5)
        for example in demonstrate(env, task, explore, agent, 0.15, random.Random(seed))
    ]


def kinds_offered(prompt: str) -> set[str]:
    """Return the types of the objects that can be taken."""
    return set(re.findall(r"take ([a-z]+) \d+ from", prompt.rpartition("Actions: ")[2]))


def test_other_objects_are_taken_where_they_are(examples: list[Example]) -> None:
    """The response takes the goal's new object if it is offered, and goes elsewhere otherwise."""
    changed = list(ask_for_other_objects(examples, random.Random(0)))
    assert len(changed) == len(examples)
    taken, missing = 0, 0
    for (prompt, _), new in zip(examples, changed, strict=True):
        if new is None:
            continue
        goal, *body = new[0].split("\n")
        assert body[:-1] == prompt.split("\n")[1:-1], "only the goal changes"
        assert body[-1] == goal
        kind, action = re.fullmatch(
            r"<think>([a-z]+)[ \d]*: [a-z]+ it</think><action>(.*)</action>", new[1]
        ).groups()
        assert re.search(rf"\b{kind}\b", goal)
        assert action in new[0].rpartition("Actions: ")[2].partition("\n")[0].split(", ")
        if kind in kinds_offered(prompt):
            assert action.startswith(f"take {kind} ")
            taken += 1
        else:
            assert action.startswith("go to ")
            missing += 1
    assert taken > 10
    assert missing > 10


def test_strategies_ask_for_the_other_object_too() -> None:
    """The new object replaces the old one in the strategy, the task and the response."""
    task = "Task: put a mug in desk."
    take = "take pen 1 from shelf 1"
    strategy = "Strategy: mug: find it in bed, put it in desk"
    prompt = f"{strategy}\n{task}\nStep 1\nActions: {take}, go to bed 1\n{task}"
    example = prompt, "<think>mug: find it</think><action>go to bed 1</action>"
    rng = random.Random(0)
    others = [example] * 20
    *changed, unchanged = ask_for_other_objects([*others, ("x take fork 1 from bed 1", "")], rng)
    assert unchanged is None
    kinds = set()
    for new in changed:
        assert new is not None
        kind = new[1].removeprefix("<think>").split()[0].rstrip(":")
        kinds.add(kind)
        lines = new[0].split("\n")
        assert lines[0] == f"Strategy: {kind}: find it in bed, put it in desk"
        assert lines[1] == lines[-1] == f"Task: put a {kind} in desk."
        assert (kind == "pen") == (take in new[1])
    assert kinds == {"pen", "fork"}


def test_all_known_objects_can_be_taken() -> None:
    """If all known objects are offered, the response always takes the new one."""
    prompt = "Task: put a mug in desk.\nActions: take pen 1 from shelf 1, go to bed 1\n"
    example = prompt, "<think>mug: find it</think><action>go to bed 1</action>"
    for new in ask_for_other_objects([example] * 20, random.Random(0)):
        assert new is not None
        assert new[1] == "<think>pen 1: take it</think><action>take pen 1 from shelf 1</action>"


def test_lamps_and_held_objects_stay(examples: list[Example]) -> None:
    """Only steps that search for the goal's object, which is not a lamp, are changed."""
    changed = ask_for_other_objects(examples, random.Random(0))
    for (_, response), new in zip(examples, changed, strict=True):
        if new is not None:
            assert re.match(r"<think>(?!desklamp|floorlamp)[a-z]+[ \d]*: (find|take) it<", response)


def test_exercises_end_with_the_thought(examples: list[Example]) -> None:
    """Exercises end with the thought, and depend only on the examples and the seed."""
    made = GameGenerator().exercises(examples, random.Random(0))
    assert made == GameGenerator().exercises(examples, random.Random(0))
    assert len(made) > 30
    for prompt, response in made:
        kind, verb = re.fullmatch(
            r"<think>([a-z]+)(?: \d+)?: (find|take) it</think>", response
        ).groups()
        assert (kind in kinds_offered(prompt)) == (verb == "take")


def test_half_of_the_examples_ask_for_another_object() -> None:
    """About half of the examples in which another object can be taken keep their goal."""
    prompt = "Task: put a mug in desk.\nActions: take pen 1 from shelf 1, go to bed 1\n"
    example = prompt, "<think>mug: find it</think><action>go to bed 1</action>"
    made = GameGenerator().augment([example] * 1000, random.Random(0))
    changed = sum(prompt.startswith("Task: put a pen in desk.") for prompt, _ in made)
    assert 400 < changed < 600
    made = GameGenerator().exercises([example] * 400, random.Random(0))
    kept = sum("take pen 1 from shelf 1, go to bed 1\n" in prompt for prompt, _ in made)
    assert 500 < kept < 700, "half of the 1,200 exercises are renumbered"


def test_half_of_the_examples_are_renumbered() -> None:
    """About half of the examples keep the numbers that games have."""
    examples = [("a pen 1, a pen 2, a pen 3", "take pen 3")] * 1000
    made = GameGenerator().augment(examples, random.Random(0))
    kept = sum(example == examples[0] for example in made)
    assert 400 < kept < 600


@given(
    names=st.lists(
        st.tuples(st.sampled_from(["pen", "mug", "desk"]), st.integers(1, 14)), max_size=40
    ),
    seed=st.integers(0, 9),
)
def test_renumbered_names_stay_apart(names: list[tuple[str, int]], seed: int) -> None:
    """Equal names get equal new names, and different names get different ones."""
    words = [f"{kind} {number}" for kind, number in names]
    prompt, response = renumber((", ".join(words), words[-1] if words else ""), random.Random(seed))
    renamed = prompt.split(", ") if words else []
    assert [word.split()[0] for word in renamed] == [kind for kind, _ in names]
    assert len(set(zip(words, renamed, strict=True))) == len(set(words)) == len(set(renamed))
    assert response == (renamed[-1] if words else "")


def test_only_numbers_change() -> None:
    """Renumbering changes neither the number of the step nor any word."""
    example = ("Step 4\nActions: take pen 1 from desk 12", "<action>take pen 1</action>")
    for seed in range(5):
        prompt, response = renumber(example, random.Random(seed))
        form = r"Step 4\nActions: take (pen [1-9]) from desk [1-9]"
        found = re.fullmatch(form, prompt)
        assert found
        assert response == f"<action>take {found[1]}</action>"
