"""The step-wise agent: text in, token ids out, and back."""

from collections.abc import Sequence

import jinja2
from transformers import PreTrainedTokenizerBase

from hgpo_rllib.agent.memory import Memory
from hgpo_rllib.agent.parsing import ParsedAction, is_offered, parse_completion
from hgpo_rllib.agent.templates import load_template, render


class StepAgent:
    """Builds a prompt from the current observation and the last K turns; reads an action back."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: str,
        memory_length: int,
        max_prompt_tokens: int,
        inadmissible_is_invalid: bool = False,
    ):
        """See `hgpo_rllib.config.AgentSettings` for the arguments."""
        self.tokenizer = tokenizer
        self.template: jinja2.Template = load_template(prompt)
        self.memory_length = memory_length
        self.max_prompt_tokens = max_prompt_tokens
        self.inadmissible_is_invalid = inadmissible_is_invalid

    def prompt(
        self, goal: str, observation: str, admissible_actions: Sequence[str], memory: Memory
    ) -> str:
        """The prompt of one turn, as one user message through the model's chat template."""
        content = render(
            self.template,
            goal=goal,
            observation=observation,
            admissible_actions=admissible_actions,
            step_count=len(memory.turns),
            history=memory.last(self.memory_length),
        )
        message = [{"role": "user", "content": content}]
        return self.tokenizer.apply_chat_template(
            message, tokenize=False, add_generation_prompt=True
        )

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a prompt; one that is too long loses its beginning."""
        ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        return ids[-self.max_prompt_tokens :]

    def read(
        self, response_ids: Sequence[int], admissible_actions: Sequence[str]
    ) -> tuple[str, ParsedAction]:
        """The completion's text, and its action with the validity rule of this agent."""
        completion = self.tokenizer.decode(response_ids, skip_special_tokens=True)
        parsed = parse_completion(completion)
        if self.inadmissible_is_invalid and not is_offered(parsed.action, admissible_actions):
            parsed = ParsedAction(parsed.action, False)
        return completion, parsed
