"""Sessions: episodes that clients of the gateway play with the policy's responses."""

import asyncio
import itertools
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jinja2

from hgpo_rllib.agent import TokenRenderer, Turn, response_seed
from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.policy_server.types import Prompt, RequestFailedError
from hgpo_rllib.rollout.environments import EnvFailedError, EnvPool, EnvTimeoutError
from hgpo_rllib.rollout.policy_agent import Policy, sampled_turn
from hgpo_rllib.rollout.trajectory import Step, Trajectory
from hgpo_rllib.settings.env import EnvSettings

Message = Mapping[str, str]
"""Chat message with ``role`` and ``content``."""
IsDisconnected = Callable[[], Awaitable[bool]]
"""Returns whether the client of a request has disconnected."""


class SessionEndedError(Exception):
    """The session accepts no more requests."""


class InvalidRequestError(ValueError):
    """The session cannot serve this request."""


@dataclass(eq=False)
class Reply:
    """A chat request and the policy's response to it."""

    messages: Sequence[Message]
    turn: "asyncio.Task[Turn]"
    is_disconnected: IsDisconnected
    delivered: bool = False
    """Whether the client was still connected when the response was there."""
    reward: float = 0.0
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_urlsafe(12)}")
    requested_at: float = field(default_factory=time.perf_counter)
    responded_at: float = 0.0
    """Times of `time.perf_counter`; 0 before the response."""


class Session:
    """An episode of one task. All methods run on one event loop."""

    def __init__(
        self,
        policy: Policy,
        renderer: TokenRenderer,
        info: Mapping[str, Any],
        group: str,
        name: str,
        temperature: float,
        max_turns: int,
    ):
        """Create a session that waits for a client.

        `policy` samples with `temperature`, seeded by `group` and `name` (see `AgentFactory`). A
        request after `max_turns` responses ends the session.
        """
        self.id = secrets.token_urlsafe(16)
        self.info = dict(info)
        self.temperature = temperature
        self._policy = policy
        self._renderer = renderer
        self._group, self._key = group, f"{group}/{name}"
        self.max_turns = max_turns
        self._replies: list[Reply] = []
        self._numbers = itertools.count()  # of requests, also failed ones: each has its own seed
        self._waiting = 0  # requests without a response
        self._last_used = 0.0
        self._won = False
        self._truncated = False
        loop = asyncio.get_running_loop()
        self.claimed: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()

    async def chat(
        self, messages: Sequence[Message], anchor: str, is_disconnected: IsDisconnected
    ) -> Reply:
        """Return the policy's response to messages.

        A request with the messages of one whose client disconnected repeats it and gets its
        response. Responses that no client received are not part of the episode. Requests may run
        concurrently; turns are in the order in which the requests arrived. `anchor` identifies the
        state, for groups of steps.

        Raises:
            SessionEndedError: the session has ended, or ends because it has `max_turns` responses.
            InvalidRequestError: the messages cannot be encoded, or are too long.
            RequestFailedError: the engine could not respond.
            RunStoppedError: the policy server does not respond.
        """
        reply = await self._undelivered_reply(messages)
        self._begin_request()  # after the wait, in which the session may have ended
        if reply is None:
            reply = self._ask(messages, anchor, is_disconnected)
        reply.is_disconnected = is_disconnected
        self._waiting += 1
        try:
            await asyncio.wait({reply.turn})
            if reply.turn.cancelled():
                raise SessionEndedError("the session ended before the response")
            reply.turn.result()
        except RunStoppedError as error:
            self.fail(error)
            raise
        except RequestFailedError:
            self._replies = [other for other in self._replies if other is not reply]
            raise
        finally:
            self._waiting -= 1
            self._last_used = time.monotonic()
        reply.responded_at = reply.responded_at or time.perf_counter()
        if not await is_disconnected():  # a request that repeats this one may have got the response
            reply.delivered = True
        return reply

    def add_reward(self, reward: float, reply_id: str | None = None) -> None:
        """Add a reward to the response with this id, or to the last one.

        Raises:
            SessionEndedError: the session has ended.
            InvalidRequestError: there is no such response.
        """
        self._begin_request()
        replies = [r for r in self._delivered() if reply_id in (None, r.id)]
        if not replies:
            raise InvalidRequestError(
                "the session has no response yet"
                if reply_id is None
                else f"the session has no response with id {reply_id!r}"
            )
        replies[-1].reward += reward

    def end(self, won: bool, reward: float = 0.0) -> None:
        """End the episode, with a reward for its last response.

        One that is not won after `max_turns` responses is truncated.

        Raises:
            SessionEndedError: the session has ended.
            InvalidRequestError: there is no response.
        """
        self.add_reward(reward)
        self._won = won
        self._truncated = not won and len(self._replies) >= self.max_turns
        self._ended.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the session with an error."""
        if not self._ended.done():
            self._ended.set_exception(error)

    async def wait_until_ended(self, timeout_s: float) -> Trajectory:
        """Wait for the end and return the trajectory.

        Raises:
            EnvTimeoutError: there was no request for `timeout_s`.
            EnvFailedError: the client reported an error.
            RunStoppedError: the policy server does not respond.
        """
        self._last_used = time.monotonic()
        try:
            while not self._ended.done():
                idle = 0.0 if self._waiting else time.monotonic() - self._last_used
                if idle >= timeout_s:
                    raise EnvTimeoutError(
                        f"no request for {timeout_s:g} s (rollout.session_timeout_s)"
                    )
                await asyncio.wait({self._ended}, timeout=timeout_s - idle)
            self._ended.result()
            return self._trajectory()
        finally:
            self._ended.cancel()  # does nothing if it is done
            self.cancel_requests()

    def cancel_requests(self) -> None:
        """End requests that wait for a response with SessionEndedError."""
        for reply in self._replies:
            reply.turn.cancel()  # does nothing if it is done

    def _begin_request(self) -> None:
        if self._ended.done():
            raise SessionEndedError("the session has ended")
        self._last_used = time.monotonic()

    async def _undelivered_reply(self, messages: Sequence[Message]) -> Reply | None:
        for reply in self._replies:
            if not reply.delivered and reply.messages == messages and await reply.is_disconnected():
                return reply
        return None

    def _ask(
        self, messages: Sequence[Message], anchor: str, is_disconnected: IsDisconnected
    ) -> Reply:
        if len(self._replies) >= self.max_turns:
            self._truncated = True
            self._ended.set_result(None)
            raise SessionEndedError(
                f"the session has ended: the limit is {self.max_turns} responses"
            )
        try:
            prompt_ids = self._renderer.encode(self._renderer.chat(*messages))
        except jinja2.TemplateError as error:
            raise InvalidRequestError(
                f"the model's chat template rejects the messages: {error}"
            ) from error
        limit = self._renderer.max_prompt_tokens
        if len(prompt_ids) > limit:
            raise InvalidRequestError(
                f"the messages have {len(prompt_ids)} tokens, more than "
                f"agent.max_prompt_tokens={limit}: shorten them"
            )
        turn = self._respond(prompt_ids, anchor, next(self._numbers))
        reply = Reply(messages, asyncio.ensure_future(turn), is_disconnected)
        self._replies.append(reply)
        return reply

    async def _respond(self, prompt_ids: list[int], anchor: str, number: int) -> Turn:
        start = time.perf_counter()
        prompt = Prompt(prompt_ids, response_seed(self._key, number), self._group)
        response = await self._policy.generate(prompt)
        completion = self._renderer.decode(response.token_ids.tolist())
        turn = sampled_turn(anchor, completion.strip(), completion, prompt_ids, response)
        return replace(turn, request_s=time.perf_counter() - start)

    def _delivered(self) -> list[Reply]:
        return [reply for reply in self._replies if reply.delivered]

    def _trajectory(self) -> Trajectory:
        replies = self._delivered()
        turns = [replace(r.turn.result(), number=n) for n, r in enumerate(replies, 1)]
        if not turns:
            raise EnvFailedError("the session ended without a response")
        following = [*(reply.requested_at for reply in replies[1:]), time.perf_counter()]
        steps = []
        for turn, reply, next_request_at in zip(turns, replies, following, strict=True):
            last = turn.number == len(turns)
            steps.append(
                Step(
                    turn,
                    observation="" if last else turns[turn.number].observation,
                    reward=reply.reward,
                    terminated=last and not self._truncated,
                    truncated=last and self._truncated,
                    info=self.info | {"won": last and self._won, "inadmissible": False},
                    env_s=max(0.0, next_request_at - reply.responded_at),
                )
            )
        return Trajectory(self.info, steps)


class Sessions:
    """Sessions that wait for a client or are in progress. All methods run on one event loop."""

    def __init__(self, timeout_s: float):
        """`timeout_s`: a session without a request for this time has failed."""
        self._timeout_s = timeout_s
        self._offered: asyncio.Queue[Session | None] = asyncio.Queue()
        self._claimed: dict[str, Session] = {}

    async def play(self, session: Session) -> Trajectory:
        """Offer a session to clients and return its trajectory; see `Session.wait_until_ended`."""
        self._offered.put_nowait(session)
        try:
            await session.claimed
            return await session.wait_until_ended(self._timeout_s)
        finally:
            session.claimed.cancel()  # does nothing if a client has it
            self._claimed.pop(session.id, None)

    async def claim(self, wait_s: float, is_disconnected: IsDisconnected) -> Session | None:
        """Return a session for a client; None if there is none for `wait_s`.

        Raises:
            SessionEndedError: the run has ended.
        """
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    session = await self._offered.get()
            except TimeoutError:
                return None
            if session is None:
                self._offered.put_nowait(None)  # for the other clients
                raise SessionEndedError("the run has ended")
            if await is_disconnected():
                self._offered.put_nowait(session)
                return None
            if not session.claimed.done():  # else it was cancelled
                session.claimed.set_result(None)
                self._claimed[session.id] = session
                return session

    def find(self, session_id: str) -> Session:
        """Return a session in progress.

        Raises:
            SessionEndedError: there is no such session, or it has ended.
        """
        if session_id not in self._claimed:
            raise SessionEndedError("there is no such session, or it has ended")
        return self._claimed[session_id]

    def close(self) -> None:
        """Tell clients that wait for a session or a response, or ask later, that the run ended."""
        self._offered.put_nowait(None)
        for session in self._claimed.values():
            session.cancel_requests()
        self._claimed.clear()


def max_steps(env_config: Mapping[str, Any], info: Mapping[str, Any]) -> int:
    """Return the step limit of a task, given its info; in a mixture, that of its environment."""
    limit: int = env_config.get("max_steps", EnvSettings().max_steps)
    if mixture := info.get("mixture"):
        own = env_config["environments"][mixture["environment"]].get("max_steps")
        limit = min(own or limit, limit)
    return limit


async def play_session(
    sessions: Sessions,
    make_session: Callable[..., Session],
    env_config: Mapping[str, Any],
    pool: EnvPool,
    task: int,
    group: str,
    name: str,
) -> Trajectory:
    """Have a client play a task; see `hgpo_rllib.rollout.group.PlayMember`.

    The environment only provides the info of the task.
    """
    async with pool.lend() as env:
        _, info = await pool.call(env.reset, seed=task)
    max_turns = max_steps(env_config, info)
    return await sessions.play(make_session(info, group, name, max_turns=max_turns))
