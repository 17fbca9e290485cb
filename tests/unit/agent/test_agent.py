"""The agent: memory, prompt templates, and token ids in and out."""

import json
from pathlib import Path

import jinja2
import pytest
from transformers import PreTrainedTokenizerFast

from env_wrappers.spaces import ANY_SEARCH
from hgpo_rllib.agent import Memory, TextRenderer, TokenRenderer
from hgpo_rllib.agent.parsing import ParsedAction
from hgpo_rllib.agent.renderer import EncodedPrompt
from hgpo_rllib.agent.templates import (
    PROMPTS,
    brief,
    load_template,
    main_actions,
    main_parts,
    page_parts,
)
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.warmstart.tokenizer import train_tokenizer
from tests.paths import SHARED

GOLDEN = Path(__file__).parent / "golden"
RELEASED = SHARED / "parity/prompt_templates.json"
ROOM = "You are in the middle of a room. Looking quickly around you, you see a desk 1, a shelf 1."
DESK = "You arrive at desk 1. On the desk 1, you see a mug 2."
ADMISSIBLE = ["examine desk 1", "go to shelf 1", "inventory", "look", "take mug 2 from desk 1"]


def remembered(*turns: tuple[str, str]) -> Memory:
    """Return a memory of these (observation, action) turns."""
    memory = Memory()
    for observation, action in turns:
        memory.add(observation, action)
    return memory


WISH = "find me a red bimo mug, and price lower than 20.00 dollars"
CRAFTING = (
    "Crafting commands:\ncraft 6 oak slab using 3 oak planks\n"
    "craft 4 oak planks using 1 oak logs\n\nGoal: craft oak slab."
)
INDEX = f"WebShop [SEP] Instruction: [SEP] {WISH} [SEP] Search"
RESULTS = (
    f"Instruction: [SEP] {WISH} [SEP] Back to Search [SEP] Page 1 (Total results: 2) [SEP] Next > "
    "[SEP] B000000001 [SEP] Bimo Red Mug [SEP] $4.99 [SEP] B000000002 [SEP] Bimo Cup [SEP] $5.0"
)
ITEM = (
    f"Instruction: [SEP] {WISH} [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] red "
    "[SEP] Bimo Red Mug [SEP] Price: $4.99 [SEP] Rating: N.A. [SEP] Description [SEP] Buy Now"
)

LATER = remembered(
    (ROOM, "go to shelf 1"),
    ("You arrive at shelf 1. On the shelf 1, you see nothing.", "look"),
    ("You are facing the shelf 1. Next to it, you see nothing.", "go to desk 1"),
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a small tokenizer trained on a few sentences."""
    return train_tokenizer([ROOM, DESK, *ADMISSIBLE] * 20, [], 320)


def make_agent(tokenizer: PreTrainedTokenizerFast, **changes) -> TokenRenderer:
    """Return a renderer that shows two turns."""
    settings = {"prompt": "alfworld_compact", "memory_length": 2, "max_prompt_tokens": 4096}
    return TokenRenderer(tokenizer, AgentSettings(**(settings | changes)))


class TestMemory:
    def test_turns_are_numbered_over_the_whole_episode(self) -> None:
        """The last turns keep their numbers, oldest first."""
        memory = remembered(*((f"o{i}", f"a{i}") for i in range(1, 6)))
        last = memory.last(2)
        assert [(t.number, t.observation, t.action) for t in last] == [
            (4, "o4", "a4"),
            (5, "o5", "a5"),
        ]

    def test_length(self) -> None:
        """`last(k)` returns no turns for k = 0, and at most as many as there are."""
        memory = remembered(("o", "a"))
        assert memory.last(0) == []
        assert len(memory.last(3)) == 1
        assert Memory().last(3) == []


# Goal, turns before the later step, and (observation, admissible actions) of both steps.
EPISODES = {
    "alfworld": ("put a mug in desk.", LATER, (ROOM, ADMISSIBLE), (DESK, ADMISSIBLE)),
    "webshop": (
        WISH,
        remembered((INDEX, "search[red mug]"), (RESULTS, "click[b000000001]")),
        (INDEX, [ANY_SEARCH, "click[search]"]),
        (ITEM, ["click[back to search]", "click[< prev]", "click[buy now]", "click[red]"]),
    ),
    "textcraft": (
        CRAFTING,
        remembered(
            (CRAFTING, "get 1 oak logs"), ("Got 1 oak logs", "craft 4 oak planks using 1 oak logs")
        ),
        (CRAFTING, ["get 1 oak logs", "inventory"]),
        (
            "Crafted 4 minecraft:oak_planks",
            ["craft 6 oak slab using 3 oak planks", "get 1 oak logs", "inventory"],
        ),
    ),
}


class TestTemplates:
    @pytest.mark.parametrize("environment", EPISODES)
    @pytest.mark.parametrize("prompt", ["full", "compact"])
    def test_golden(self, environment: str, prompt: str) -> None:
        """The rendered text equals the recorded one exactly."""
        goal, memory, first, later = EPISODES[environment]
        name = f"{environment}_{prompt}"
        renderer = TextRenderer(AgentSettings(prompt=name))
        for step, shown, turns in (("first", first, []), ("later", later, memory.turns)):
            text = renderer.message(goal, *shown, len(turns), turns[-2:])
            assert text == (GOLDEN / f"{name}_{step}.txt").read_text()

    @pytest.mark.parametrize(
        ("observation", "parts"),
        [
            (INDEX, ["Search"]),
            (ITEM, ITEM.split(" [SEP] ")[2:]),
            # "Instruction:" counts only where the store puts it; a product may have this name.
            ("a [SEP] b [SEP] Instruction: [SEP] c", ["a", "b", "Instruction:", "c"]),
            ("", [""]),
        ],
    )
    def test_page_parts(self, observation: str, parts: list[str]) -> None:
        """The parts are those after the instruction, or the whole page if there is none."""
        assert page_parts(observation) == parts

    def test_main_parts(self) -> None:
        """Navigation, prices and counts are dropped; titles that begin like a button are kept."""
        assert main_parts(page_parts(RESULTS)) == [
            *("B000000001", "Bimo Red Mug"),
            *("B000000002", "Bimo Cup"),
        ]
        assert main_parts(page_parts(ITEM)) == ["color", "red", "Bimo Red Mug", "Buy Now"]
        kept = ["Reviews of Mugs", "Page 1 of a Diary", "Next > Big", "Price List", "", "a $5 mug"]
        assert main_parts(kept) == kept

    def test_a_template_file(self, tmp_path: Path) -> None:
        """A path is used as given, and the template can use the filters."""
        path = tmp_path / "own.txt"
        path.write_text("{{ current_step }} {{ admissible_actions | main_actions | join('+') }}\n")
        actions = ["look", "go to bed 1", "examine bed 1", "use lamp 1"]
        text = TextRenderer(AgentSettings(prompt=str(path))).message("", "", actions, 4, [])
        assert text == "5 go to bed 1+use lamp 1"

    def test_an_unknown_variable_is_an_error(self, tmp_path: Path) -> None:
        """A misspelt variable never becomes an empty string."""
        path = tmp_path / "own.jinja"
        path.write_text("{{ observations }}")
        with pytest.raises(jinja2.UndefinedError, match="observations"):
            TextRenderer(AgentSettings(prompt=str(path))).message("", "", [], 0, [])

    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        """The error lists the available templates."""
        with pytest.raises(FileNotFoundError) as error:
            load_template("alfworld_fool")
        assert "'alfworld_fool'" in str(error.value)
        for path in PROMPTS.glob("*.jinja"):
            assert path.stem in str(error.value)

    @pytest.mark.parametrize(
        ("observation", "expected"),
        [
            (ROOM + "\n\nYour task is to: x.", "You look around."),
            (DESK, "On the desk 1, you see a mug 2."),
            ("You arrive at fridge 1. The fridge 1 is closed.", "The fridge 1 is closed."),
            ("Nothing happens.", "Nothing happens."),
            ("You open it. You arrive at a. b", "You open it. You arrive at a. b"),
        ],
    )
    def test_brief(self, observation: str, expected: str) -> None:
        """Only a leading arrival and the room's inventory are dropped."""
        assert brief(observation) == expected

    def test_main_actions(self) -> None:
        """Actions for looking are dropped by their first word; the others keep their order."""
        actions = ["take b 1 from examine 1", *ADMISSIBLE, "lookup", "help"]
        assert main_actions(actions) == [
            "take b 1 from examine 1",
            "go to shelf 1",
            "take mug 2 from desk 1",
            "lookup",
            "help",
        ]

    @pytest.mark.skipif(
        not RELEASED.is_file(), reason="the released texts are not beside this checkout"
    )
    def test_prompts_are_written_for_this_project(self) -> None:
        """No template shares a long line with the released ones."""
        released = json.loads(RELEASED.read_text()).values()
        theirs = {line.strip() for text in released for line in text.splitlines()}
        for path in PROMPTS.glob("*.jinja"):
            ours = {line.strip() for line in path.read_text().splitlines()}
            assert not [line for line in ours & theirs if len(line) > 40], path.name


class TestTokenRenderer:
    def test_prompt_shows_the_last_turns(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """The pocket model's chat template adds nothing to the rendered text."""
        prompt = make_agent(tokenizer).prompt("put a mug in desk.", DESK, ADMISSIBLE, LATER)
        assert not prompt.truncated
        text = tokenizer.decode(prompt.token_ids)
        assert text == (GOLDEN / "alfworld_compact_later.txt").read_text()

    def test_prompt_goes_through_the_chat_template(
        self, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        """The prompt is one user message followed by the opening of the response."""
        template = tokenizer.chat_template
        try:
            tokenizer.chat_template = (
                "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
                "{% if add_generation_prompt %}<assistant>{% endif %}"
            )
            renderer = make_agent(tokenizer)
            prompt = renderer.render(renderer.message("g", ROOM, ["look"], 0, []))
        finally:
            tokenizer.chat_template = template
        assert prompt.startswith("<user>Task: g\n")
        assert prompt.endswith("</><assistant>")
        assert prompt.count("<user>") == 1

    def test_a_long_prompt_loses_its_beginning(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """The end, with the actions, is kept; a prompt that fits does not change."""
        turn = ("g", DESK, ADMISSIBLE, LATER)
        whole = make_agent(tokenizer).prompt(*turn).token_ids
        short = make_agent(tokenizer, max_prompt_tokens=16).prompt(*turn)
        assert (short.token_ids, short.truncated) == (whole[-16:], True)
        just = make_agent(tokenizer, max_prompt_tokens=len(whole)).prompt(*turn)
        assert (just.token_ids, just.truncated) == (whole, False)

    def test_shortening_removes_the_oldest_turns_first(
        self, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        """As few turns as possible are removed, and the beginning only if no turn is left."""

        def prompt(memory_length: int, limit: int, shorten: str = "memory") -> EncodedPrompt:
            agent = make_agent(
                tokenizer,
                memory_length=memory_length,
                max_prompt_tokens=limit,
                shorten_prompts=shorten,
            )
            return agent.prompt("g", DESK, ADMISSIBLE, LATER)

        lengths = [len(prompt(k, 4096).token_ids) for k in range(4)]
        assert lengths == sorted(set(lengths))
        for kept in range(3):
            for limit in (lengths[kept], lengths[kept + 1] - 1):
                expected = EncodedPrompt(prompt(kept, 4096).token_ids, truncated=True)
                assert prompt(3, limit) == expected
        assert not prompt(3, lengths[3]).truncated
        assert prompt(3, 16) == prompt(0, 16, "beginning")

    def test_the_end_token_is_no_part_of_the_completion(
        self, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        """The completion has the tags but not the end token."""
        text = "<think>look around</think><action>look</action>"
        ids = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        assert make_agent(tokenizer).decode(ids) == text

    @pytest.mark.parametrize("strict", [False, True])
    def test_inadmissible_is_invalid(
        self, tokenizer: PreTrainedTokenizerFast, strict: bool
    ) -> None:
        """A well-formed action that is not offered is invalid only if the setting is on."""
        agent = make_agent(tokenizer, inadmissible_is_invalid=strict)
        completion = "<think></think><action>go to desk 1</action>"
        assert agent.parse(completion, ADMISSIBLE) == ParsedAction("go to desk 1", not strict)
        assert agent.parse(completion, ["go to desk 1"]) == ParsedAction("go to desk 1", True)
