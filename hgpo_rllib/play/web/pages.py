"""Show an episode in the browser, step by step: a recorded one, or a game that is being played."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from env_wrappers.errors import DataError
from env_wrappers.spaces import ANY_ACTION, ANY_SEARCH
from hgpo_rllib.agent.parsing import is_admissible
from hgpo_rllib.agent.templates import SEPARATOR
from hgpo_rllib.jsonl import Row
from hgpo_rllib.play.episodes import POSITION_KEYS, VALUES, marks_of, thought_of
from hgpo_rllib.play.policy import WatchedPolicy
from hgpo_rllib.play.terminal import as_action, plain, score_rows
from hgpo_rllib.play.web.application import application, read_form, render
from hgpo_rllib.reporting.numbers import decimal, number

_FACTS = ("game", "task_type", *POSITION_KEYS)


def episode_app(episode: Row) -> Starlette:
    """Return an application that shows a recorded episode, as returned by `read_episode`."""

    async def first(request: Request) -> Response:
        return RedirectResponse("/steps/1")

    async def show(request: Request) -> Response:
        return _page(episode, request.path_params["place"])

    return application([Route("/", first), Route("/steps/{place:int}", show)])


class Game:
    """Pages of an environment that plays one episode at a time; `app` is the application."""

    def __init__(
        self,
        env: gym.Env,
        task: Mapping[str, Any],
        make_policy: Callable[[Mapping[str, Any]], WatchedPolicy] | None = None,
    ):
        """Start an episode; `task` has the arguments of its reset, which select the task.

        `make_policy` returns the policy of an episode, given the info of the reset. None: a person
        plays.

        Raises:
            DataError: the task does not exist, or cannot be loaded.
        """
        self._env, self._make_policy = env, make_policy
        self._tasks: int = env.get_wrapper_attr("num_tasks")
        self._one_request = asyncio.Lock()  # a second click must not take a second step
        self._start(task)
        self.app = application(
            [
                Route("/", self._current),
                Route("/games", self._choose_game, methods=["POST"]),
                Route("/steps/{place:int}", self._show),
                Route("/steps/{place:int}", self._act, methods=["POST"]),
            ]
        )

    def _start(self, task: Mapping[str, Any]) -> None:
        observation, self._info = self._env.reset(**task)
        self._task = task
        facts = {key: self._info[key] for key in ("goal", "game", "task_type")}
        self._steps: list[Row] = []
        self._episode: Row = {**facts, "success": None, "episode_return": 0.0, "steps": self._steps}
        self._policy = self._make_policy and self._make_policy(self._info)
        self._see(observation)

    def _see(self, observation: str) -> None:
        self._steps.append({"anchor": observation, "offered": self._info["admissible_actions"]})

    @property
    def _running(self) -> bool:
        return self._episode["success"] is None

    async def _current(self, request: Request) -> Response:
        """Redirect to the current step."""
        return RedirectResponse(f"/steps/{len(self._steps)}", status_code=303)

    async def _choose_game(self, request: Request) -> Response:
        form = await read_form(request)
        async with self._one_request:
            number = form.get("number")
            task = {"seed": self._read_task(number)} if number else self._task
            # No episode is running if the reset fails.
            self._episode["success"] = bool(self._episode["success"])
            self._start(task)
        return await self._current(request)

    def _read_task(self, text: str) -> int:
        digits = text.isascii() and text.isdecimal() and len(text) < 12
        if not digits or int(text) >= self._tasks:
            raise HTTPException(400, f"There is no game {text[:40]!r}: 0 to {self._tasks - 1}.")
        return int(text)

    async def _show(self, request: Request) -> Response:
        place = request.path_params["place"]
        async with self._one_request:
            step = self._steps[-1]
            ready = self._running and place == len(self._steps)
            if ready and self._policy and "action" not in step:
                step |= await self._policy.choose(step["anchor"], self._info)
        return _page(
            self._episode,
            place,
            game={"tasks": self._tasks, "running": ready, "person": self._policy is None},
        )

    async def _act(self, request: Request) -> Response:
        """Take the step of the page; do nothing if it has been taken, as by a double click."""
        form = await read_form(request)
        async with self._one_request:
            if self._running and request.path_params["place"] == len(self._steps):
                step = self._steps[-1]
                action = step.get("action") if self._policy else form.get("action")
                if not action:
                    raise HTTPException(400, "There is no action.")
                if not self._policy:
                    action = as_action(action, step["offered"])
                self._step(action)
        return await self._current(request)

    def _step(self, action: str) -> None:
        try:
            observation, reward, terminated, truncated, self._info = self._env.step(action)
        except DataError:
            self._episode["success"] = False  # no episode is running after an error
            raise
        result = {"action": action, "reward": reward, "inadmissible": self._info["inadmissible"]}
        self._steps[-1] |= result
        self._episode["episode_return"] += reward
        self._see(observation)
        if terminated or truncated:
            self._episode["success"] = bool(self._info["won"])
            self._episode["score"] = score_rows(self._info)


def _page(episode: Row, place: int, game: Row | None = None) -> Response:
    """Return the page of a step; with `game`, the forms to play on.

    Raises:
        HTTPException: there is no such step.
    """
    steps = episode["steps"]
    if not 1 <= place <= len(steps):
        raise HTTPException(404, f"There is no step {place}: the episode has {len(steps)}.")
    won, step = episode.get("success", False), steps[place - 1]
    return render(
        "step.html.jinja",
        goal=plain(episode.get("goal") or "n/a"),
        facts=[(key.replace("_", " "), plain(episode[key])) for key in _FACTS if key in episode],
        end="running" if won is None else "won" if won else "lost",
        total=decimal(number(episode, "episode_return")),
        score=episode.get("score", []) if place == len(steps) else [],
        taken=len(steps) - (game is not None),  # a game's last step is not taken yet
        faulty=[marks_of(step) != ["valid"] for step in steps],
        place=place,
        step=_show_step(step),
        actions=_actions(step),
        game=game,
    )


def _show_step(step: Row) -> Row:
    """Return what the page of a step shows of its record, which may have no action yet."""
    seen = str(step.get("anchor", ""))
    # A page of WebShop in text mode has parts, other observations have lines.
    parts = seen.split(SEPARATOR) if SEPARATOR in seen else seen.splitlines()
    action = plain(step.get("action", ""))
    return {
        "acted": "action" in step,
        "seen": [(plain(p), f"click[{p.strip()}]".lower() == action.lower()) for p in parts],
        "thought": thought_of(step),
        "action": action,
        "marks": marks_of(step),
        "values": [(name, decimal(number(step, key), 3)) for name, key in VALUES if key in step],
        "prompt": plain(step.get("prompt", "")),
        "completion": plain(step.get("completion", "")),
        "sampled": "shares" in step,
    }


def _actions(step: Row) -> list[tuple[str, str, str, bool]]:
    """Return each action: itself, as text, its share in percent, and whether it was offered.

    Actions that a policy sampled come first, in the order of their shares.
    """
    shares, offered = step.get("shares", {}), step.get("offered", [])
    listed = [a for a in offered if a not in shares and a not in (ANY_ACTION, ANY_SEARCH)]
    actions = [*shares, *listed]
    return [(a, plain(a), f"{shares.get(a, 0):.0%}", is_admissible(a, offered)) for a in actions]
