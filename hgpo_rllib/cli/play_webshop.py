"""`hgpo play webshop`: shop for a goal, or look at a recorded episode; also in a browser."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hgpo_rllib.config import ConfigError

if TYPE_CHECKING:
    from env_wrappers.webshop.shop import Shop

MAX_STEPS = 15  # as the environment's


def webshop(
    data: Annotated[
        Path | None, typer.Option(help="directory of the product files; without it, $WEBSHOP_DATA")
    ] = None,
    split: Annotated[str, typer.Option(help="which goals: test, dev or train")] = "test",
    goals: Annotated[
        Literal["synthetic", "human"], typer.Option(help="made from the products, or by people")
    ] = "synthetic",
    goal: Annotated[
        int | None, typer.Option(help="a goal of the split, counted from 0; without it, 0")
    ] = None,
    episode: Annotated[
        Path | None, typer.Option(help="show an episode of this file of a run's episodes/")
    ] = None,
    index: Annotated[
        int | None, typer.Option(help="which episode of the file, counted from 0; without it, 0")
    ] = None,
    step_by_step: Annotated[
        bool, typer.Option("--step-by-step", help="wait for Enter before each turn of the episode")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="show it in a browser instead, on this machine only")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(help="of --web; without it, 3000; 0: any free one", min=0, max=65535),
    ] = None,
) -> None:
    """Shop for a goal in the terminal, or with --episode see a recorded episode turn by turn."""
    _check(goal, data, episode, index, step_by_step, web, port)
    if episode is not None:
        from hgpo_rllib.play.episodes import read_episode

        recorded = read_episode(episode, index or 0)
        if web:
            from hgpo_rllib.play.web.episode import episode_app
            from hgpo_rllib.play.web.server import serve

            serve(episode_app(recorded), port)
        else:
            from hgpo_rllib.play.console import make_console
            from hgpo_rllib.play.episodes import show_episode

            show_episode(recorded, make_console(), step_by_step)
        return
    shop, places = _open(data, goals, split)
    if web:
        from hgpo_rllib.play.web.server import serve
        from hgpo_rllib.play.web.store import store_app

        serve(store_app(shop, places), port)
        return
    from hgpo_rllib.play.console import make_console
    from hgpo_rllib.play.shopping import shop_for_goal

    if not 0 <= (goal or 0) < len(places):
        raise ConfigError(f"--goal: no goal {goal}, {split} has {len(places)} (0 is the first)")
    shop_for_goal(shop, places[goal or 0], MAX_STEPS, make_console())


def _check(
    goal: int | None,
    data: Path | None,
    episode: Path | None,
    index: int | None,
    step_by_step: bool,
    web: bool,
    port: int | None,
) -> None:
    """Refuse options that have no effect.

    Raises:
        ConfigError: there are some.
    """
    if episode is None and (index is not None or step_by_step):
        raise ConfigError("--index and --step-by-step show a recorded episode: add --episode")
    if episode is not None and (data is not None or goal is not None):
        raise ConfigError("--episode shows a recorded episode: leave out --data and --goal")
    if web and (goal is not None or step_by_step):
        raise ConfigError(
            "--web lets one choose in the browser: leave out --goal and --step-by-step"
        )
    if port is not None and not web:
        raise ConfigError("--port is where --web is served: add --web")


def _open(
    data: Path | None, goals: Literal["synthetic", "human"], split: str
) -> tuple["Shop", range]:
    from env_wrappers.webshop.goals import goal_range
    from env_wrappers.webshop.shop import open_shop

    shop = open_shop(data, goals)
    return shop, goal_range(split, len(shop.goals))
