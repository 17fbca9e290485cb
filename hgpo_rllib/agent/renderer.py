"""Render prompts as text or token ids, and parse completions to actions."""

import copy
import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import jinja2
import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.agent.memory import Memory, Span, Turn
from hgpo_rllib.agent.parsing import ParsedAction, find_blocks, is_admissible, parse_completion
from hgpo_rllib.agent.templates import load_template
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.settings.agent import AgentSettings

if TYPE_CHECKING:  # its import takes seconds, and commands that only read episodes do not need it
    from transformers import PreTrainedTokenizerBase


class EncodedPrompt(NamedTuple):
    """Prompt of one turn in token ids."""

    token_ids: list[int]
    truncated: bool
    """Whether the prompt was too long and was shortened."""


class TextRenderer:
    """Render the observation and the last `memory_length` turns as a message; parse completions."""

    def __init__(self, settings: AgentSettings):
        """Load the templates. A `memory_length` of None is 0."""
        self.template: jinja2.Template = load_template(settings.prompt)
        self.is_conversation = settings.context == "conversation"
        self.follow_up: jinja2.Template = load_template(settings.follow_up_prompt)
        self.memory_length = settings.memory_length or 0
        self.inadmissible_is_invalid = settings.inadmissible_is_invalid
        self.has_subgoals = settings.subgoals
        self._task_renderers: dict[Any, Self] = {}

    def for_task(self, info: Mapping[str, Any]) -> Self:
        """Return the renderer of a task, given its first info.

        Tasks of a mixture can have a template (`prompt`) and a `memory_length` of their own; other
        tasks have this renderer.
        """
        settings = info.get("mixture", {})
        own = settings.get("prompt"), settings.get("memory_length")
        if own == (None, None):
            return self
        if own not in self._task_renderers:
            renderer = copy.copy(self)
            if own[0] is not None:
                renderer.template = load_template(own[0])
            if own[1] is not None:
                renderer.memory_length = own[1]
            self._task_renderers[own] = renderer
        return self._task_renderers[own]

    def message(
        self,
        goal: str,
        observation: str,
        admissible_actions: Sequence[str],
        step_count: int,
        history: Sequence[Turn],
        memory: Memory | None = None,
    ) -> str:
        """Render the template for one turn, after lines with the strategy and the sub-goal, if any.

        Args:
            goal: the task in words.
            observation: the current observation.
            admissible_actions: actions that the environment currently accepts.
            step_count: turns already taken.
            history: the turns to show, oldest first; empty on the first step.
            memory: has the lessons, the strategy and the sub-goal to show; None: none of them.
        """
        memory = memory or Memory()
        given = _variables(goal, observation, admissible_actions, step_count)
        text = self.template.render(given, history=history, lessons=memory.lessons)
        if self.has_subgoals:
            text = f"Subgoal: {memory.subgoal}\n{text}"
        return f"Strategy: {' '.join(memory.strategy.split())}\n{text}" if memory.strategy else text

    def follow_up_message(
        self, goal: str, observation: str, admissible_actions: Sequence[str], step_count: int
    ) -> str:
        """Render the template of a conversation's messages after the first; see `message`."""
        return self.follow_up.render(_variables(goal, observation, admissible_actions, step_count))

    def parse(self, completion: str, admissible_actions: Sequence[str]) -> ParsedAction:
        """Parse a completion to an action, with the validity rule of the settings."""
        parsed = (
            find_blocks(completion).parsed if self.has_subgoals else parse_completion(completion)
        )
        if self.inadmissible_is_invalid and not is_admissible(parsed.action, admissible_actions):
            parsed = ParsedAction(parsed.action, False)
        return parsed


def _variables(
    goal: str, observation: str, admissible_actions: Sequence[str], step_count: int
) -> dict[str, Any]:
    """Return the variables of both templates."""
    return {
        "goal": goal,
        "observation": observation,
        "admissible_actions": admissible_actions,
        "step_count": step_count,
        "current_step": step_count + 1,
    }


FOLLOW_UP_VARIABLES = _variables("", "", (), 0).keys()
PROMPT_VARIABLES = FOLLOW_UP_VARIABLES | {"history", "lessons"}


class TokenRenderer(TextRenderer):
    """A `TextRenderer` that encodes prompts to token ids, up to a maximum number."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", settings: AgentSettings):
        """See `TextRenderer`; `tokenizer` is the model's."""
        super().__init__(settings)
        # Prompts are encoded one at a time, so the tokenizer's threads would add only overhead.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self.tokenizer = tokenizer
        self.max_prompt_tokens = settings.max_prompt_tokens
        self.shorten = settings.shorten_prompts

    def prompt(
        self, goal: str, observation: str, admissible_actions: Sequence[str], memory: Memory
    ) -> EncodedPrompt:
        """Return the prompt of one turn, of at most `max_prompt_tokens` tokens.

        In a conversation it continues the last turn's prompt and response, whose token ids stay as
        they are. If it does not fit, a new conversation begins.
        """
        turns = memory.last(self.memory_length)
        fixed = (goal, observation, admissible_actions, len(memory.turns))
        cut = False
        if self.is_conversation and memory.turns:
            ids = self._continued(memory.turns[-1], self.follow_up_message(*fixed))
            if len(ids) <= self.max_prompt_tokens:
                return EncodedPrompt(ids, False)
            cut = True
        ids = self.encode(self.render(self.message(*fixed, turns, memory)))
        truncated = cut or len(ids) > self.max_prompt_tokens
        while self.shorten == "memory" and turns and len(ids) > self.max_prompt_tokens:
            turns = turns[1:]
            ids = self.encode(self.render(self.message(*fixed, turns, memory)))
        return EncodedPrompt(ids[-self.max_prompt_tokens :], truncated)

    def render(self, message: str) -> str:
        """Return the model's chat template with `message` as the only user message."""
        return self.chat({"role": "user", "content": message})

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text without further special tokens."""
        text = text.encode(errors="replace").decode()  # tokenizers refuse lone surrogates
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def encode_response(self, response: str) -> list[int]:
        """Return the token ids of a response, with the end token."""
        return [*self.encode(response), self.tokenizer.eos_token_id]

    def chat(self, *messages: Mapping[str, str]) -> str:
        """Return messages in the model's chat template, up to the next response."""
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )

    def encode_follow_up(self, message: str) -> list[int]:
        """Return the token ids between a response with its end token and the next response."""
        ids = self._after_response(message)
        return ids[1:] if ids[:1] == [self.tokenizer.eos_token_id] else ids

    def _after_response(self, message: str) -> list[int]:
        """Return the token ids of the chat template from a response to the next one.

        They begin with the end token of the response, if the template has one.
        """
        marker = "<<response>>"
        chat = self.chat(
            {"role": "user", "content": "-"},
            {"role": "assistant", "content": marker},
            {"role": "user", "content": message},
        )
        return self.encode(chat.partition(marker)[2])

    def _continued(self, last: Turn, message: str) -> list[int]:
        """Return the token ids of the last turn, and of the message that follows it.

        A response that reached the token limit gets the end token of the template, or else that of
        the tokenizer.
        """
        response, follow_up = last.response_ids.tolist(), self._after_response(message)
        if not any(map(self._is_special, (*response[-1:], *follow_up[:1]))):
            response.append(self.tokenizer.eos_token_id)
        elif response[-1:] == follow_up[:1]:
            follow_up = follow_up[1:]
        return [*last.prompt_ids.tolist(), *response, *follow_up]

    def _is_special(self, token: int) -> bool:
        added = self.tokenizer.added_tokens_decoder.get(token)
        return added is not None and added.special

    def extended(self, prompt_ids: NDArray[np.int32], text: str) -> NDArray[np.int32]:
        """Return the token ids of a prompt with `text` at the end of its last message.

        Raises:
            ConfigError: the prompt does not end like a prompt of the model's chat template.
        """
        end = self._message_end
        place = len(prompt_ids) - len(end)
        if not np.array_equal(prompt_ids[place:], end):
            raise ConfigError(
                "a prompt does not end as the model's chat template ends a message, so no text "
                "can be added for a teacher: let the agent use the template, or choose another "
                "algorithm.estimator"
            )
        parts = (prompt_ids[:place], self.encode(text), end)
        return np.concatenate([np.asarray(part, np.int32) for part in parts])

    @cached_property
    def _message_end(self) -> list[int]:
        """Token ids between the last message and the response."""
        marker = "<<message>>"
        return self.encode(self.chat({"role": "user", "content": marker}).partition(marker)[2])

    def decode(self, response_ids: Sequence[int]) -> str:
        """Return the text of a response, without special tokens."""
        return self.tokenizer.decode(response_ids, skip_special_tokens=True)

    def spans(self, completion: str, response_ids: Sequence[int], is_first: bool) -> list[Span]:
        """Return the spans of the blocks of a response with a sub-goal.

        The sub-goal of a response that keeps it has no span. Without an action, the whole response
        is the span of the action.
        """

        def length(tokens: int) -> int:
            return len(self.decode(response_ids[:tokens]))

        blocks, tokens = find_blocks(completion), range(len(response_ids) + 1)
        spans = []
        for role, (start, end) in blocks.places.items():
            if role != "subgoal" or blocks.switches or is_first:
                first = bisect_right(tokens, start, key=length) - 1
                spans.append(Span(first, bisect_left(tokens, end, key=length), role))
        if "action" not in blocks.places and len(response_ids):
            spans.append(Span(0, len(response_ids), "action"))
        return spans
