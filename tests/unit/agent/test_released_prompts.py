"""The released agents' prompts as files of `agent.prompt`, and the order of their slots in ours.

The tests are skipped without the released texts, which are not part of this project.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from hgpo_rllib.agent import Memory, TextRenderer, Turn
from hgpo_rllib.settings.agent import AgentSettings
from tests.paths import SHARED

RELEASED = SHARED / "parity/prompt_templates.json"
pytestmark = pytest.mark.skipif(
    not RELEASED.is_file(), reason="the released texts are not beside this checkout"
)
SLOTS = {
    "task_description": "{{ goal }}",
    "step_count": "{{ step_count }}",
    "history_length": "{{ history | length }}",
    "current_step": "{{ current_step }}",
}
ALFWORLD = SLOTS | {
    "current_observation": "{{ observation }}",
    "action_history": "{% for turn in history %}[Observation {{ turn.number }}: "
    "'{{ turn.observation }}', Action {{ turn.number }}: '{{ turn.action }}']"
    '{{ "\\n" if not loop.last }}{% endfor +%}',
    "admissible_actions": "{% for action in admissible_actions %}'{{ action }}'"
    '{{ "\\n " if not loop.last }}{% endfor %}',
}
WEBSHOP = SLOTS | {
    "current_observation": "{{ observation | page }}",
    "action_history": ALFWORLD["action_history"].replace(
        "turn.observation", "turn.observation | page"
    ),
    "available_actions": "{% for action in admissible_actions %}'{{ action }}',"
    '{{ "\\n" if not loop.last }}{% endfor +%}',
}
ROOM = "You are in the middle of a room. Looking quickly around you, you see a desk 1, a shelf 1."
FIRST = f"{ROOM}\n\nYour task is to: put a mug in desk."
WISH = "find me a red bimo mug, and price lower than 20.00 dollars"
INDEX = f"WebShop [SEP] Instruction: [SEP] {WISH} [SEP] Search"
ITEM = f"Instruction: [SEP] {WISH} [SEP] Back to Search [SEP] Bimo Red Mug [SEP] Buy Now"


def released_agent(
    name: str, slots: dict[str, str], folder: Path, memory_length: int
) -> TextRenderer:
    """Return the agent with the released texts, written as docs/evaluation.md describes."""
    texts = json.loads(RELEASED.read_text())
    without, later = (
        re.sub(r"\{(\w+)\}", lambda slot: slots[slot[1]], texts[f"{name}_TEMPLATE{suffix}"])
        for suffix in ("_NO_HIS", "")
    )
    file = folder / f"{name.lower()}.jinja"
    file.write_text(f"{{% if history %}}\n{later}{{% else %}}\n{without}{{% endif %}}")
    return TextRenderer(AgentSettings(prompt=str(file), memory_length=memory_length))


def alfworld_by_the_rules(
    observation: str, actions: Sequence[str], turns: Sequence[Turn], length: int
) -> str:
    """Return the prompt as the notes on the released code describe it (Q4.1)."""
    texts = json.loads(RELEASED.read_text())
    listed = "\n ".join(f"'{action}'" for action in actions)
    if not turns or length <= 0:
        return texts["ALFWORLD_TEMPLATE_NO_HIS"].format(
            current_observation=observation, admissible_actions=listed
        )
    shown = turns[-length:]
    history = "\n".join(
        f"[Observation {t.number}: '{t.observation}', Action {t.number}: '{t.action}']"
        for t in shown
    )
    return texts["ALFWORLD_TEMPLATE"].format(
        task_description="put a mug in desk.",
        step_count=len(turns),
        history_length=len(shown),
        action_history=history,
        current_step=len(turns) + 1,
        current_observation=observation,
        admissible_actions=listed,
    )


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_alfworld(tmp_path: Path, steps: int) -> None:
    """Every slot is filled as in the released code, on the first step and on later ones."""
    memory = Memory()
    for number in range(steps):
        memory.add(FIRST if number == 0 else f"You see {number}.", f"go to shelf {number}")
    actions = ["go to desk 1", "look", "take mug 2 from shelf 1"]
    observation = FIRST if steps == 0 else "You arrive at shelf 1."
    agent = released_agent("ALFWORLD", ALFWORLD, tmp_path, memory_length=2)
    shown = agent.message("put a mug in desk.", observation, actions, steps, memory.last(2))
    assert shown == alfworld_by_the_rules(observation, actions, memory.turns, 2)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_webshop(tmp_path: Path, steps: int) -> None:
    """Pages lose their instruction, and the list of actions keeps its last comma."""
    memory = Memory()
    for number in range(steps):
        memory.add(INDEX if number == 0 else ITEM, f"click[{number}]")
    pages = {INDEX: "'Search'", ITEM: "'Back to Search' [SEP] 'Bimo Red Mug' [SEP] 'Buy Now'"}
    actions = ["search[<your query>]", "click[search]"]
    agent = released_agent("WEBSHOP", WEBSHOP, tmp_path, memory_length=2)
    observation = ITEM if steps else INDEX
    shown = agent.message(WISH, observation, actions, steps, memory.last(2))
    texts = json.loads(RELEASED.read_text())
    slots = {
        "task_description": WISH,
        "current_observation": pages[observation],
        "available_actions": "'search[<your query>]',\n'click[search]',",
    }
    if steps:
        slots |= {
            "step_count": steps,
            "history_length": min(steps, 2),
            "action_history": "\n".join(
                f"[Observation {t.number}: '{pages[t.observation]}', Action {t.number}: "
                f"'{t.action}']"
                for t in memory.turns[-2:]
            ),
            "current_step": steps + 1,
        }
    expected = texts["WEBSHOP_TEMPLATE" if steps else "WEBSHOP_TEMPLATE_NO_HIS"].format(**slots)
    assert shown == expected


@pytest.mark.parametrize(("name", "prompt"), [("ALFWORLD", "alfworld"), ("WEBSHOP", "webshop")])
@pytest.mark.parametrize("later", [False, True])
def test_our_texts_have_the_slots_in_their_order(name: str, prompt: str, later: bool) -> None:
    """Our templates show the values in the order of the released template's slots."""
    memory = Memory()
    for number in range(7 if later else 0):
        memory.add(f"seen{number}", f"done{number}")
    message = TextRenderer(AgentSettings(prompt=f"{prompt}_full", memory_length=5)).message(
        "@goal@", "@now@", ["@first@", "@last@"], len(memory.turns), memory.last(5)
    )
    values = {
        "task_description": "@goal@",
        "step_count": " 7 step",
        "history_length": " 5 of",
        "action_history": "seen2",
        "current_step": " step 8",
        "current_observation": "@now@",
        "admissible_actions": "@first@",
        "available_actions": "@first@",
    }
    text = json.loads(RELEASED.read_text())[f"{name}_TEMPLATE{'' if later else '_NO_HIS'}"]
    places = [message.index(values[slot]) for slot in re.findall(r"\{(\w+)\}", text)]
    assert places == sorted(places)
    assert ("seen2" in message, "seen1" in message) == (later, False)
