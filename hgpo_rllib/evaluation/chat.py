"""Evaluate a model behind a URL with the OpenAI client."""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import openai
from openai.types.chat import ChatCompletion

from env_wrappers.errors import one_line
from hgpo_rllib.agent import ModelAgent, ModelAgentFactory, TextRenderer, Turn, action_grammar
from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.evaluation.models import Model
from hgpo_rllib.policy_server.openai_middleware import find_key
from hgpo_rllib.policy_server.types import RequestFailedError
from hgpo_rllib.settings.agent import AgentSettings

Message = dict[str, str]
KEY_VARIABLES = ("HGPO_API_KEY", "OPENAI_API_KEY")
"""Environment variables of the API key; the first one that is set is used."""
RETRIES = 6
TIMEOUT_S = 600.0
SEED_LIMIT = 2**31  # some servers reject larger seeds


@dataclass(frozen=True)
class RemoteModel:
    """A model behind a URL; see `EvaluatedModel`."""

    url: str
    name: str
    temperature: float

    def describe(self) -> dict[str, Any]:
        """Describe the model by address and name, as its weights are unknown."""
        parts = urlsplit(self.url)
        address = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
        return {"served_by": "openai", "address": f"{address}{parts.path}", "name": self.name}

    @contextmanager
    def open(self) -> Iterator[Model]:
        """Yield the model; requests share one client."""
        client = openai.AsyncOpenAI(
            base_url=self.url, api_key=api_key(), max_retries=RETRIES, timeout=TIMEOUT_S
        )

        def agent_factory(settings: AgentSettings) -> ModelAgentFactory:
            model = ChatModel(client, self.name, settings, self.temperature)
            return partial(ChatAgent, model, TextRenderer(settings))

        async def closing(work: Any) -> Any:
            async with client:
                return await work

        yield Model(agent_factory, lambda work: asyncio.run(closing(work)))


@dataclass(frozen=True)
class ChatModel:
    """A model on a server, with the settings of the agents that use it."""

    client: openai.AsyncOpenAI
    name: str
    settings: AgentSettings
    temperature: float


class ChatAgent(ModelAgent):
    """Agent that sends prompts as chat messages."""

    _model: ChatModel
    _conversation: Sequence[Message] = ()

    async def ask(self, observation: str, admissible_actions: Sequence[str]) -> Turn:
        """See `ModelAgent`.

        Raises:
            RequestFailedError: the server rejected the message.
            RunStoppedError: the server did not respond, or denied access.
        """
        asked = time.perf_counter()
        try:
            messages, reply, truncated = await self._reply(observation, admissible_actions)
        except openai.BadRequestError as error:
            raise RequestFailedError(one_line(error)) from error
        except openai.OpenAIError as error:
            raise RunStoppedError(
                f"the model's server does not respond ({one_line(error)}): finished episodes are "
                "kept, repeat the command to continue"
            ) from error
        choice, usage = reply.choices[0], reply.usage
        completion = choice.message.content or ""
        if self._renderer.is_conversation:
            self._conversation = [*messages, {"role": "assistant", "content": completion}]
        parsed = self._renderer.parse(completion, admissible_actions)
        cut = choice.finish_reason == "length"
        return Turn(
            observation,
            parsed.action,
            completion,
            number=self.number,
            is_valid=parsed.is_valid and not cut,
            prompt=messages[-1]["content"],
            prompt_truncated=truncated,
            response_truncated=cut,
            tokens=(usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0),
            request_s=time.perf_counter() - asked,
        )

    async def _reply(
        self, observation: str, admissible_actions: Sequence[str]
    ) -> tuple[list[Message], ChatCompletion, bool]:
        """Return the accepted messages, the reply, and whether others were rejected before.

        If a conversation's next message is rejected, a new conversation begins. If settings allow,
        a message is retried without its oldest turns.
        """
        renderer, model, settings = self._renderer, self._model, self._model.settings
        turns = self.memory.last(renderer.memory_length)
        fixed = (self.goal, observation, admissible_actions, len(self.memory.turns))
        grammar = action_grammar(admissible_actions) if settings.constrain_actions else None
        earlier, truncated = self._conversation, False
        while True:
            if earlier:
                message = renderer.follow_up_message(*fixed)
            else:
                message = renderer.message(*fixed, turns, self.memory)
            messages = [*earlier, {"role": "user", "content": message}]
            try:
                reply = await model.client.chat.completions.create(
                    model=model.name,
                    messages=cast(Any, messages),
                    temperature=model.temperature,
                    max_tokens=settings.max_response_tokens,
                    seed=self.seed % SEED_LIMIT,
                    # Only servers with vLLM understand this.
                    extra_body=grammar and {"structured_outputs": {"structural_tag": grammar}},
                )
                if not getattr(reply, "choices", None):  # the client returns whatever it gets
                    raise openai.OpenAIError(f"a response without choices: {reply}")
                return messages, reply, truncated
            except openai.BadRequestError:
                if not earlier and (not turns or settings.shorten_prompts != "memory"):
                    raise
            if not earlier:
                turns = turns[1 + len(turns) // 4 :]
            earlier, truncated = [], True


def is_url(word: str) -> bool:
    """Whether `word` is an HTTP URL."""
    return word.startswith(("http://", "https://"))


def find_remote_model(url: str, name: str | None, temperature: float) -> RemoteModel:
    """Return the model with this name, or the only model, of a server.

    Raises:
        ConfigError: the URL is wrong, the request failed, the server lacks the model, or `name` is
            None and the server does not have exactly one model.
    """
    try:
        parts = urlsplit(url)
        is_wrong = not parts.hostname or parts.port == 0 or "@" in parts.netloc or parts.query
    except ValueError:  # brackets or a port that cannot be read
        is_wrong = True
    if is_wrong:
        url = re.sub(r"//[^/\s]*@", "//", url.partition("?")[0])  # without a password or key
        raise ConfigError(f"{url}: give http://HOST:PORT/v1; keys come from ${KEY_VARIABLES[0]}")
    base = url.rstrip("/") if parts.path.strip("/") else f"{url.rstrip('/')}/v1"
    try:
        with openai.OpenAI(base_url=base, api_key=api_key(), max_retries=1, timeout=30) as client:
            served = [model.id for model in client.models.list()]
    except openai.AuthenticationError as error:
        variables = " or ".join(f"${name}" for name in KEY_VARIABLES)
        raise ConfigError(f"{base} requires an API key: set {variables}") from error
    except openai.OpenAIError as error:
        raise ConfigError(f"cannot list the models of {base} ({one_line(error)})") from error
    except (AttributeError, ValueError) as error:  # the client reads whatever it gets
        raise ConfigError(
            f"{base} did not return a list of models: give http://HOST:PORT/v1"
        ) from error
    if name is None and len(served) != 1:
        raise ConfigError(f"{base} serves {len(served)} models: choose one with --name")
    if name is not None and name not in served:
        raise ConfigError(f"--name {name}: {base} serves {', '.join(served[:5]) or 'no model'}")
    return RemoteModel(base, name or served[0], temperature)


def api_key() -> str:
    """Return the key from the environment, or a placeholder, which servers without a key ignore."""
    return next(filter(None, map(find_key, KEY_VARIABLES)), "none")
