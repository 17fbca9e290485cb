"""`hgpo play …`: play a game oneself, or look at an episode that a run recorded."""

from pathlib import Path
from typing import Annotated

import typer

from hgpo_rllib.cli import play_webshop
from hgpo_rllib.cli.data import TrustedOption
from hgpo_rllib.config import ConfigError, EnvSettings

app = typer.Typer(help="Play a game, or show a recorded episode.", no_args_is_help=True)
app.command("webshop")(play_webshop.webshop)


@app.callback()
def _root() -> None:
    """Keep the name of the environment a sub-command."""


@app.command()
def alfworld(
    data: Annotated[
        Path | None, typer.Option(help="directory with json_2.1.1; without it, $ALFWORLD_DATA")
    ] = None,
    split: Annotated[str, typer.Option(help="folder of json_2.1.1")] = "train",
    game: Annotated[
        str | None,
        typer.Option(
            help="a game of the split, counted from 0, or the path of a game file; without it, 0"
        ),
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
    trusted: TrustedOption = False,
) -> None:
    """Play a game in the terminal, or with --episode see a recorded one turn by turn."""
    from hgpo_rllib.play.console import make_console

    if episode is None:
        from hgpo_rllib.play.terminal import play_game

        if index is not None or step_by_step:
            raise ConfigError("--index and --step-by-step show a recorded episode: add --episode")
        found = _find_game(data, split, game or "0")
        play_game(found, EnvSettings().max_steps, make_console(), trusted)
        return
    if data is not None or game is not None:
        raise ConfigError("--episode shows a recorded game: leave out --data and --game")
    from hgpo_rllib.play.episodes import read_episode, show_episode

    show_episode(read_episode(episode, index or 0), make_console(), step_by_step)


def _find_game(data: Path | None, split: str, game: str) -> Path:
    """The game file: by its path, or by its place in the sorted list of the split.

    Raises:
        ConfigError: there is no such game.
    """
    from env_wrappers.alfworld.games import find_games

    if not game.isdecimal():
        if not Path(game).is_file():
            raise ConfigError(f"--game: {game} is neither a number nor a game file")
        return Path(game)
    games = find_games(data, split)
    if int(game) >= len(games):
        raise ConfigError(f"--game: no game {game}, {split} has {len(games)} (0 is the first)")
    return games[int(game)]
