"""The agent being trained, which queries the policy server with token ids."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from hgpo_rllib.agent import ModelAgent, Span, TokenRenderer, Turn, action_grammar
from hgpo_rllib.policy_server.types import Generation, Prompt
from hgpo_rllib.rollout.restrictions import GrammarReader


class Policy(Protocol):
    """Generates responses to prompts."""

    async def generate(self, prompt: Prompt) -> Generation:
        """Generate the response to one prompt."""


class PolicyAgent(ModelAgent):
    """Agent that queries a policy at every turn."""

    _model: Policy
    _renderer: TokenRenderer

    def __init__(self, *arguments: Any, grammars: GrammarReader | None = None, **options: Any):
        """See `ModelAgent`. With `grammars`, the policy only samples admissible actions."""
        super().__init__(*arguments, **options)
        self._grammars = grammars

    async def ask(self, observation: str, admissible_actions: Sequence[str]) -> Turn:
        """See `ModelAgent`.

        Raises:
            RequestFailedError: the request failed.
        """
        prompt = self._renderer.prompt(self.goal, observation, admissible_actions, self.memory)
        grammar = action_grammar(admissible_actions) if self._grammars else None
        start = time.perf_counter()
        response = await self._model.generate(
            Prompt(prompt.token_ids, self.seed, self.group, grammar)
        )
        request_s = time.perf_counter() - start
        response_ids = response.token_ids.tolist()
        completion = self._renderer.decode(response_ids)
        parsed = self._renderer.parse(completion, admissible_actions)
        restrictions = None
        if self._grammars and grammar:
            restrictions = self._grammars.restrictions(grammar, response_ids)
        spans: tuple[Span, ...] = ()
        if self._renderer.has_subgoals:
            is_first = not self.memory.turns
            spans = tuple(self._renderer.spans(completion, response_ids, is_first))
        return replace(
            sampled_turn(observation, parsed.action, completion, prompt.token_ids, response),
            number=self.number,
            is_valid=parsed.is_valid and response.finish_reason != "length",
            prompt_truncated=prompt.truncated,
            restrictions=restrictions,
            spans=spans,
            request_s=request_s,
        )


def sampled_turn(
    observation: str, action: str, completion: str, prompt_ids: Sequence[int], response: Generation
) -> Turn:
    """Return the turn of a response that the engine sampled."""
    truncated = response.finish_reason == "length"
    return Turn(
        observation,
        action,
        completion,
        is_valid=not truncated,
        prompt_ids=np.asarray(prompt_ids, np.int32),
        response_ids=response.token_ids,
        response_truncated=truncated,
        behavior_logp=response.logp,
        weight_version=response.version,
        weight_versions=response.versions,
        tokens=(len(prompt_ids), len(response.token_ids)),
        engine_s=response.engine_s,
    )
