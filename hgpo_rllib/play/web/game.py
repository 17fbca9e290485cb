"""Play episodes in the browser, step by step: a person chooses the actions, or a policy."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gymnasium as gym
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from hgpo_rllib.agent.parsing import is_offered
from hgpo_rllib.jsonl import Row
from hgpo_rllib.play.terminal import plain
from hgpo_rllib.play.web.application import application, read_form, read_number, render
from hgpo_rllib.play.web.episode import show_head, show_step


class Player(Protocol):
    """Chooses the actions of one episode."""

    async def choose(self, observation: str, info: Mapping[str, Any]) -> Row:
        """Return the action as fields of a step's record (docs/architecture.md).

        With the field `shares`: how often each action was sampled, from 0 to 1.
        """


class Game:
    """Pages of an environment that plays one episode at a time; `app` is the application."""

    def __init__(
        self,
        env: gym.Env,
        task: Mapping[str, Any],
        begin: Callable[[Mapping[str, Any]], Player] | None = None,
    ):
        """Start an episode.

        Args:
            env: the environment.
            task: arguments of its reset, which select the first task.
            begin: starts the player of an episode, given the info of the reset; None: a person
                plays.

        Raises:
            DataError: the task does not exist, or cannot be loaded.
        """
        self._env, self._task, self._begin = env, task, begin
        self._tasks: int = env.get_wrapper_attr("num_tasks")
        self._one_request = asyncio.Lock()  # a second click must not take a second step
        self._start()
        self.app = application(
            [
                Route("/", self._first),
                Route("/games", self._choose_game, methods=["POST"]),
                Route("/steps/{place:int}", self._show),
                Route("/steps/{place:int}", self._act, methods=["POST"]),
            ]
        )

    def _start(self) -> None:
        observation, self._info = self._env.reset(**self._task)
        facts = {key: self._info[key] for key in ("goal", "game", "task_type")}
        self._episode: Row = {**facts, "success": None, "episode_return": 0.0, "steps": []}
        self._player = self._begin and self._begin(self._info)
        self._see(observation)

    def _see(self, observation: str) -> None:
        self._steps.append({"anchor": observation, "offered": self._info["admissible_actions"]})

    @property
    def _steps(self) -> list[Row]:
        """The steps so far, and the current observation."""
        return self._episode["steps"]

    @property
    def _running(self) -> bool:
        return self._episode["success"] is None

    async def _first(self, request: Request) -> Response:
        return self._go()

    def _go(self) -> Response:
        """Redirect to the current step."""
        return RedirectResponse(f"/steps/{len(self._steps)}", status_code=303)

    async def _choose_game(self, request: Request) -> Response:
        form = await read_form(request)
        async with self._one_request:
            if number := form.get("number"):
                self._task = {"seed": read_number(number, 0, self._tasks - 1)}
            self._start()
        return self._go()

    async def _show(self, request: Request) -> Response:
        place = request.path_params["place"]
        async with self._one_request:
            if not 1 <= place <= len(self._steps):
                raise HTTPException(404, f"There is no step {place}: 1 to {len(self._steps)}.")
            step = self._steps[place - 1]
            if self._running and self._player and "action" not in step:
                step |= await self._player.choose(step["anchor"], self._info)
        return render(
            "game.html.jinja",
            head=show_head(self._episode),
            place=place,
            step=show_step(step),
            offered=_offered(step),
            shares="shares" in step,
            running=self._running and place == len(self._steps),
            person=self._player is None,
            tasks=self._tasks,
        )

    async def _act(self, request: Request) -> Response:
        """Take the step of the page; do nothing if it has been taken, as by a double click."""
        form = await read_form(request)
        async with self._one_request:
            if self._running and request.path_params["place"] == len(self._steps):
                step = self._steps[-1]
                action = form.get("action") if self._player is None else step.get("action")
                if not action:
                    raise HTTPException(400, "There is no action.")
                self._step(step | {"action": action})
        return self._go()

    def _step(self, step: Row) -> None:
        observation, reward, terminated, truncated, self._info = self._env.step(step["action"])
        self._steps[-1] = step | {"reward": reward, "inadmissible": self._info["inadmissible"]}
        self._episode["episode_return"] += reward
        self._see(observation)
        if terminated or truncated:
            self._episode["success"] = bool(self._info["won"])


def _offered(step: Row) -> list[tuple[str, str, str, bool]]:
    """Return each action: itself, as text, its share in percent, and whether it was offered.

    Actions that were sampled come first, in the order of their shares.
    """
    shares, offered = step.get("shares", {}), step["offered"]
    actions = [*shares, *(action for action in offered if action not in shares)]
    return [
        (action, plain(action), f"{shares.get(action, 0):.0%}", is_offered(action, offered))
        for action in actions
    ]
