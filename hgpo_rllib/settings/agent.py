"""The section `agent` of a run file."""

from typing import Literal

from pydantic import Field

from hgpo_rllib.section import Section


class AgentSettings(Section):
    """How the agent turns observations into prompts, and responses into actions."""

    prompt: str = "alfworld_full"
    """Name of a template in hgpo_rllib/agent/prompts, or path of a jinja file."""
    context: Literal["window", "conversation"] = "window"
    """`window`: each prompt shows the current observation and the last turns (as in the paper).
    `conversation`: each prompt continues the one before with the response and a message rendered
    with `follow_up_prompt`, so that the engine reuses its prefix cache and the learner processes
    an episode at once. A conversation that does not fit into `max_prompt_tokens` ends, and the next
    one begins with a prompt as in `window`."""
    strategy_prompt: str | None = None
    """Template of the message that asks for a strategy before the first action, such as
    `strategy_full`. All prompts of the episode begin with the strategy (StraTA,
    docs/advantages.md). null: no strategies."""
    subgoals: bool = False
    """The agent sets itself sub-goals (HiPER, docs/advantages.md): a response has the blocks
    <switch>, <subgoal> and <action>, for which `prompt` has to ask, as `subgoals_full` does.
    All prompts begin with the current sub-goal."""
    follow_up_prompt: str = "follow_up"
    """Template of the messages in a conversation after the first."""
    memory_length: int | None = Field(None, ge=0)
    """Number of previous (observation, action) pairs in the prompt. null: the value of
    `algorithm.context_length`."""
    inadmissible_is_invalid: bool = False
    """Treat a well-formed but inadmissible action as invalid, with the penalty of
    `algorithm.invalid_penalty`. The released code does not."""
    constrain_actions: bool = False
    """Sample only admissible actions: after `<action>`, the engine can only continue with one of
    them. The learner uses the probabilities of the constrained distribution. WebShop pages with a
    search bar are not constrained."""
    max_prompt_tokens: int = Field(4096, ge=16)
    """Maximum length of a prompt in tokens. Longer prompts are shortened."""
    shorten_prompts: Literal["beginning", "memory"] = "beginning"
    """How to shorten a prompt that is too long: `beginning` removes its first tokens (as the
    released code), `memory` removes the oldest turns of its memory first."""
    max_response_tokens: int = Field(512, ge=1)
    """Maximum length of a response in tokens."""
