"""`agent.context=conversation`: each prompt extends the previous one in token ids."""

import copy
import itertools
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from hgpo_rllib.agent import Memory, TokenRenderer, Turn
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.warmstart.tokenizer import train_tokenizer

DESK = "You arrive at desk 1. On the desk 1, you see a mug 2."
ADMISSIBLE = ["examine desk 1", "go to shelf 1", "inventory", "look", "take mug 2 from desk 1"]
CHATML = (
    "{% for message in messages %}<eos_start>{{ message['role'] }}\n{{ message['content'] }}"
    "{{ eos_token }}\n{% endfor %}{{ '<eos_start>assistant\n' }}"
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a small tokenizer trained on a few sentences."""
    return train_tokenizer([DESK, *ADMISSIBLE] * 20, [], 320)


def make_renderer(
    tokenizer: PreTrainedTokenizerFast,
    max_prompt_tokens: int = 4096,
    follow_up_prompt: str = "follow_up",
) -> TokenRenderer:
    """Return a renderer of conversations."""
    settings = AgentSettings(
        prompt="alfworld_compact",
        memory_length=2,
        max_prompt_tokens=max_prompt_tokens,
        context="conversation",
        follow_up_prompt=follow_up_prompt,
    )
    return TokenRenderer(tokenizer, settings)


def play(renderer: TokenRenderer, steps: int, response: str, end: bool = True) -> Memory:
    """Return the turns of an episode in which every response is the same."""
    memory, end_token = Memory(), renderer.tokenizer.eos_token_id
    ids = renderer.tokenizer(response, add_special_tokens=False)["input_ids"]
    for _ in range(steps):
        prompt = renderer.prompt("find a mug", DESK, ADMISSIBLE, memory)
        memory.turns.append(
            Turn(
                DESK,
                "look",
                number=len(memory.turns) + 1,
                prompt_ids=np.array(prompt.token_ids, np.int32),
                prompt_truncated=prompt.truncated,
                response_ids=np.array([*ids, end_token] if end else ids, np.int32),
            )
        )
    return memory


@pytest.mark.parametrize("template", [None, CHATML])
@pytest.mark.parametrize("end", [True, False])
def test_prompts_are_those_of_the_chat_template(
    tokenizer: PreTrainedTokenizerFast, template: str | None, end: bool
) -> None:
    """A prompt appends token ids and equals the chat template applied to all messages."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = template or tokenizer.chat_template
    renderer = make_renderer(tokenizer)
    *before, last = play(renderer, 3, "<action>look</action>", end).turns
    for earlier, later in itertools.pairwise([*before, last]):
        whole = [*earlier.prompt_ids, *earlier.response_ids]
        assert later.prompt_ids[: len(whole)].tolist() == whole
    follow_up = f"{DESK}\nActions: {', '.join(ADMISSIBLE)}"
    first = renderer.message("find a mug", DESK, ADMISSIBLE, 0, [])
    messages = [{"role": "user", "content": first}]
    response = "<action>look</action>" + ("" if template else tokenizer.eos_token)
    for _ in before:
        messages.append({"role": "assistant", "content": response})
        messages.append({"role": "user", "content": follow_up})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(last.prompt_ids) == text


@pytest.mark.parametrize("end", [True, False])
def test_a_chat_template_with_an_end_token_of_its_own(
    tokenizer: PreTrainedTokenizerFast, end: bool
) -> None:
    """A chat template may have another end token than the tokenizer, as Gemma's does."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn_end>"]})
    tokenizer.chat_template = CHATML.replace("{{ eos_token }}", "<turn_end>")
    renderer = make_renderer(tokenizer)
    response = "<action>look</action>" + "<turn_end>" * end
    memory = play(renderer, 2, response, end=False)
    last = tokenizer.decode(memory.turns[1].prompt_ids)
    assert "<eos>" not in last
    assert last.count("</action><turn_end>\n<eos_start>user\n") == 1


def test_one_that_is_too_long_begins_again(tokenizer: PreTrainedTokenizerFast) -> None:
    """A conversation that is too long restarts from a window prompt."""
    window = TokenRenderer(tokenizer, AgentSettings(prompt="alfworld_compact", memory_length=2))
    renderer = make_renderer(tokenizer)
    memory = play(renderer, 4, "<action>look</action>")
    lengths = [len(turn.prompt_ids) for turn in memory.turns]
    assert lengths == sorted(set(lengths))
    renderer = make_renderer(tokenizer, max_prompt_tokens=lengths[2])
    memory = play(renderer, 5, "<action>look</action>")
    assert [turn.prompt_truncated for turn in memory.turns] == [False] * 3 + [True, False]
    short = Memory(memory.turns[:3])
    again = window.prompt("find a mug", DESK, ADMISSIBLE, short).token_ids
    assert memory.turns[3].prompt_ids.tolist() == again
    assert memory.turns[4].prompt_ids[: len(again)].tolist() == again


def test_a_template_of_follow_ups(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Follow-up templates get the variables of `agent.prompt`, except the history."""
    path = tmp_path / "next.jinja"
    path.write_text("{{ goal }} {{ current_step }} {{ observation }}")
    renderer = make_renderer(tokenizer, follow_up_prompt=str(path))
    last = play(renderer, 2, "so").turns[-1]
    assert tokenizer.decode(last.prompt_ids).endswith(f"find a mug 2 {DESK}")


def test_a_lone_surrogate_is_replaced(tokenizer: PreTrainedTokenizerFast) -> None:
    """JSON can contain one, and tokenizers refuse it."""
    renderer = make_renderer(tokenizer)
    assert renderer.encode("look \ud83d") == renderer.encode("look ?")
