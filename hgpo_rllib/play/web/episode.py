"""Show a recorded episode in the browser, step by step."""

import re

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from env_wrappers.webshop.pages import SEPARATOR
from hgpo_rllib.jsonl import Row
from hgpo_rllib.play.episodes import VALUES, marks_of, thought_of
from hgpo_rllib.play.terminal import plain
from hgpo_rllib.play.web.application import application, render
from hgpo_rllib.reporting.numbers import decimal, number

_CLICK = re.compile(r"click\[(.*)\]", re.DOTALL)
_FACTS = ("game", "task_type", "split", "iteration", "group", "member")


def episode_app(episode: Row) -> Starlette:
    """Return an application that shows one episode, as returned by `read_episode`."""
    steps = episode["steps"]
    head = show_head(episode)

    async def first(request: Request) -> Response:
        return RedirectResponse("/steps/1")

    async def show(request: Request) -> Response:
        place = request.path_params["place"]
        if not steps:
            return render("episode.html.jinja", head=head, place=0, step=None)
        if not 1 <= place <= len(steps):
            raise HTTPException(404, f"There is no step {place}: 1 to {len(steps)}.")
        return render(
            "episode.html.jinja", head=head, place=place, step=show_step(steps[place - 1])
        )

    return application([Route("/", first), Route("/steps/{place:int}", show)])


def show_head(episode: Row) -> dict[str, object]:
    """Return what all pages show of an episode, which is still running if `success` is None."""
    won = episode.get("success", False)
    return {
        "goal": plain(episode.get("goal") or "n/a"),
        "facts": [(key.replace("_", " "), plain(episode.get(key, "n/a"))) for key in _FACTS],
        "end": "running" if won is None else "won" if won else "lost",
        "total": decimal(number(episode, "episode_return")),
        "bad": [marks_of(step) != ["valid"] for step in episode["steps"]],
    }


def show_step(step: Row) -> dict[str, object]:
    """Return what the page of a step shows of its record, which may have no action yet."""
    action = str(step.get("action", ""))
    clicked = _CLICK.fullmatch(action)
    target = clicked.group(1).strip().lower() if clicked else None
    seen = [plain(part.strip()) for part in _parts(str(step.get("anchor", "")))]
    return {
        "acted": "action" in step,
        "seen": [(part, part.lower() == target) for part in seen],
        "thought": thought_of(step),
        "action": plain(action),
        "marks": marks_of(step),
        "values": [(name, decimal(number(step, key), 3)) for name, key in VALUES if key in step],
        "prompt": plain(step.get("prompt", "")),
        "completion": plain(step.get("completion", "")),
    }


def _parts(observation: str) -> list[str]:
    """Split an observation: a page in text mode into its parts, other texts into lines."""
    return observation.split(SEPARATOR) if SEPARATOR in observation else observation.splitlines()
