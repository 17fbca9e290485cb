"""`hgpo play …`: play a game in the terminal or browser, or show an episode or a policy."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hgpo_rllib.cli.common import Overrides
from hgpo_rllib.cli.evaluate import DataOption, EnvOption, NameOption, SplitOption
from hgpo_rllib.config import as_override, load_config
from hgpo_rllib.errors import ConfigError

if TYPE_CHECKING:
    import gymnasium as gym

app = typer.Typer(help="Play a game, or show a recorded episode or a policy.", no_args_is_help=True)
GameOption = Annotated[int, typer.Option(help="index of a game in the split, from 0", min=0)]
WebOption = Annotated[bool, typer.Option("--web", help="serve it to a browser on this machine")]
PortOption = Annotated[
    int | None,
    typer.Option(help="port of the pages; 0: any free port (default: 3000)", min=0, max=65535),
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


def _add_command(name: str, *settings: str) -> None:
    """Add the command that plays an environment, with these settings unless they are overridden."""

    @app.command(name)
    def play(
        overrides: Overrides = None,
        data: Annotated[
            Path | None,
            typer.Option(
                help="data of the environment (default: $ALFWORLD_DATA, $WEBSHOP_DATA, or those "
                "of the package)"
            ),
        ] = None,
        split: SplitOption = None,
        game: GameOption = 0,
        web: WebOption = False,
        port: PortOption = None,
    ) -> None:
        """Play a game in the terminal or, with --web, in a browser."""
        from hgpo_rllib.environments import environment_id, find_environment
        from hgpo_rllib.environments.checks import check_settings

        _check_port(web, port)
        environment = find_environment(environment_id(name))
        changes = [f"env.env_id={environment.env_id}", f"env.max_steps={environment.max_steps}"]
        if data is not None:
            changes.append(as_override("env.data", str(data)))
        config = load_config(None, [*changes, *settings, *(overrides or [])])
        split = split or str(environment.eval_split)
        env = check_settings(config, split)
        task = _task(env, split, game)
        if web:
            from hgpo_rllib.play.web.application import listen, serve
            from hgpo_rllib.play.web.pages import Game

            serve(Game(env, task).app, listen(port))
        else:
            from hgpo_rllib.play.terminal import make_console, play_episode

            play_episode(env, task, config.env.max_steps, make_console())


for _name in ("alfworld", "scienceworld", "textcraft"):
    _add_command(_name)
_add_command("webshop", "env.options.observation_mode=text_rich")  # with the chosen options


@app.command()
def policy(
    words: Annotated[
        list[str],
        typer.Argument(metavar="MODEL [KEY=VALUE]...", help="as those of hgpo evaluate"),
    ],
    env: EnvOption = None,
    split: SplitOption = None,
    data: DataOption = None,
    game: GameOption = 0,
    samples: Annotated[
        int, typer.Option(help="responses per step, which estimate the probabilities", min=1)
    ] = 32,
    name: NameOption = None,
    port: PortOption = None,
) -> None:
    """Watch a policy play in a browser: each step's thought, and how probable the actions are."""
    from hgpo_rllib.environments.checks import check_no_strategies, make_environment
    from hgpo_rllib.evaluation.chat import is_url
    from hgpo_rllib.evaluation.request import make_request
    from hgpo_rllib.play.policy import WatchedPolicy
    from hgpo_rllib.play.web.application import listen, serve
    from hgpo_rllib.play.web.pages import Game

    request = make_request(words, env, split, data=data, name=name)
    config, evaluated = request.config, request.model
    assert evaluated is not None, "the agent hgpo has a model"
    check_no_strategies(config, "hgpo play policy")
    if samples > 1 and is_url(words[0]) and config.agent.context == "conversation":
        raise ConfigError(
            "--samples: in a conversation, a server gives one response: use --samples 1"
        )
    playing = make_environment(config.env, request.split)
    task = _task(playing, request.split, game)
    listener = listen(port)
    typer.echo("starting the policy (Ctrl+C ends)", err=True)
    episodes = itertools.count()
    with evaluated.open() as model:
        make_agent = model.agent_factory(config.agent)

        def watch(info: Mapping[str, Any]) -> WatchedPolicy:
            group = f"{config.seed}/{request.split}/{info['game']}/{next(episodes)}"
            return WatchedPolicy(make_agent, samples, info, group)

        serve(Game(playing, task, watch).app, listener, model.run)


def _check_port(web: bool, port: int | None) -> None:
    if port is not None and not web:
        raise ConfigError("--port needs --web: add --web")


def _task(env: "gym.Env", split: str, game: int) -> dict[str, int]:
    """Return the arguments of the reset that plays a game of the split."""
    games = env.get_wrapper_attr("num_tasks")
    if game >= games:
        raise ConfigError(f"--game {game}: there are {games} in {split} (0 is the first)")
    return {"seed": game}
