"""`hgpo data …`: generate, check and download games, and write demonstrations."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hgpo_rllib.cli import data_webshop
from hgpo_rllib.cli.output import JsonOption, print_rows
from hgpo_rllib.cli.progress import generate_data, progress
from hgpo_rllib.config import ConfigError, RunConfig, load_config
from hgpo_rllib.settings.generated import GamesSettings

if TYPE_CHECKING:
    from env_wrappers.alfworld.check import TreeCheck

app = typer.Typer(
    help="Generate, check and download game data; write demonstrations and recorded steps.",
    no_args_is_help=True,
)
generate_app = typer.Typer(help="Generate games, or a store.", no_args_is_help=True)
check_app = typer.Typer(
    help="Count the contents of game data, and report what is broken.", no_args_is_help=True
)
download_app = typer.Typer(help="Download the official games.", no_args_is_help=True)
app.add_typer(generate_app, name="generate")
app.add_typer(check_app, name="check")
app.add_typer(download_app, name="download")
generate_app.command("webshop")(data_webshop.generate_webshop)
check_app.command("webshop")(data_webshop.check_webshop)

GAMES = GamesSettings()
COUNTS = ("games", "replayed", "skipped", "broken")

DataArgument = Annotated[
    Path | None,
    typer.Argument(help="directory with json_2.1.1 (default: $ALFWORLD_DATA)", show_default=False),
]

TrustedOption = Annotated[
    bool,
    typer.Option("--trusted", help="accept grammars that are not ALFWorld's: they can run code"),
]


@generate_app.command("alfworld")
def generate_alfworld(
    out: Annotated[Path, typer.Argument(help="directory to create")],
    seed: Annotated[int, typer.Option(help="the same seed gives the same games")] = GAMES.seed,
    train: Annotated[int, typer.Option(help="games to train on")] = GAMES.train,
    valid_seen: Annotated[
        int, typer.Option(help="held-out games in the floor plans of train")
    ] = GAMES.valid_seen,
    valid_unseen: Annotated[
        int, typer.Option(help="held-out games in other floor plans")
    ] = GAMES.valid_unseen,
    test: Annotated[
        int, typer.Option(help="further held-out games in all floor plans, for final results")
    ] = GAMES.test,
    rooms: Annotated[str, typer.Option(help="kinds of rooms, separated by commas")] = ",".join(
        GAMES.rooms
    ),
    task_types: Annotated[
        str | None, typer.Option(help="families of tasks, separated by commas (default: all six)")
    ] = None,
    max_receptacles: Annotated[
        int, typer.Option(help="maximum number of receptacles in a room")
    ] = GAMES.max_receptacles,
    workers: Annotated[
        int | None,
        typer.Option(help="number of processes; does not affect the games (default: one per core)"),
    ] = None,
) -> None:
    """Generate solvable ALFWorld games; a second call with the same options does nothing.

    `hgpo train` generates the same games from the same options.
    """
    from env_wrappers.alfworld.games import TASK_TYPES
    from env_wrappers.alfworld.generator import GenerationSpec, generate

    spec = GenerationSpec(
        seed=seed,
        splits={
            "train": train,
            "valid_seen": valid_seen,
            "valid_unseen": valid_unseen,
            "test": test,
        },
        task_types=TASK_TYPES if task_types is None else _names(task_types),
        rooms=_names(rooms),
        max_receptacles=max_receptacles,
    )
    workers = workers or os.cpu_count() or 1
    total = sum(spec.splits.values())
    generate_data(out, "games", total, lambda progress: generate(out, spec, progress, workers))


@check_app.command("alfworld")
def check_alfworld(
    data: DataArgument = None,
    as_json: JsonOption = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="also play every recorded walkthrough, which must win")
    ] = False,
    trusted: TrustedOption = False,
) -> None:
    """Count the games per split and family, and name broken files (exit code 1)."""
    from env_wrappers.alfworld.check import check_tree

    data = data or _default_data()
    with progress("checking games") as on_progress:
        found = check_tree(data, replay, trusted, on_progress)
    if as_json:
        broken = [{"file": file, "reason": why} for file, why in found.broken.items()]
        facts = {"data": str(data), "kind": found.kind}
        typer.echo(json.dumps(facts | {"splits": _counts(found), "broken": broken}))
    else:
        _print_check(data, found, replay)
    if found.broken:
        raise typer.Exit(1)


@download_app.command("alfworld")
def download_alfworld(data: DataArgument = None) -> None:
    """Download the official games (with `alfworld-download` of the alfworld package)."""
    from env_wrappers.alfworld.download import DownloadError, download
    from env_wrappers.alfworld.games import GAME_FILE, TREE

    data = data or _default_data()
    try:
        download(data)
    except DownloadError as error:
        tree = f"{TREE}/<split>/<task>/<trial>/{GAME_FILE}"
        typer.echo(
            f"hgpo: {error}. You can also copy the games to {data} as {tree}, or set "
            "ALFWORLD_DATA to the directory that contains them. `hgpo data generate alfworld` "
            "needs no network",
            err=True,
        )
        raise typer.Exit(1) from error
    typer.echo(f"{data}: downloaded; check it with `hgpo data check alfworld {data}`")


@app.command("demos")
def write_demonstrations(
    config: Annotated[Path, typer.Argument(help="run file, or the name of one in tuned_examples/")],
    out: Annotated[Path, typer.Argument(help="file to write; compressed if it ends in .gz")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="settings to override, as section.key=value"),
    ] = None,
    expert: Annotated[
        str,
        typer.Option(
            help="oracle; for ALFWorld also explorer or planner; for WebShop also first-hit, "
            "first-hit-options, careful or exhaustive; for TextCraft also careful or wasteful"
        ),
    ] = "oracle",
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="number of tasks, evenly spaced in the split (default: all)"),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="episodes per task")] = 1,
    seed: Annotated[int, typer.Option(help="seed of the expert")] = 0,
) -> None:
    """Write the won episodes of a scripted expert on CONFIG's training tasks, for `hgpo sft`.

    A JSON line is the prompt and response of a step; with agent.context=conversation, the messages
    of an episode. Prompts are those of the agent in CONFIG.
    """
    import jinja2

    from hgpo_rllib.environments import find_environment
    from hgpo_rllib.play.demos import DemoSpec, write_demos

    run = _with_data(load_config(config, overrides or []))
    find_environment(run.env.env_id).check(run, run.env.train_split)
    spec = DemoSpec(run.env, run.agent, expert, repeats, seed)
    with progress("demonstrating tasks") as on_progress:
        try:
            demos = write_demos(out, spec, limit, on_progress)
        except jinja2.TemplateError as error:
            follow_up = "" if run.agent.context == "window" else " or agent.follow_up_prompt"
            raise ConfigError(f"agent.prompt{follow_up}: {error}") from error
        except OSError as error:
            raise ConfigError(f"cannot write {out}: {error.strerror}") from error
    left_out = [demo for demo in demos if demo.left_out]
    for demo in left_out:
        typer.echo(f"left out {demo.game}: {demo.left_out}", err=True)
    count = sum(len(demo.records) for demo in demos)
    what = "steps" if run.agent.context == "window" else "conversations"
    tasks = len({demo.game for demo in demos if demo.records})
    typer.echo(f"{out}: {count} {what} of {tasks} tasks, {len(left_out)} episodes left out")


def _with_data(config: RunConfig) -> RunConfig:
    """Return the config with the path of its data, which are generated if it has none."""
    from hgpo_rllib.environments import find_environment
    from hgpo_rllib.warmstart import prepare

    if find_environment(config.env.env_id).data_generator(config) is None:
        return config
    with progress("generating data") as on_progress:
        data = prepare.make_data(config, on_progress)
    return config.model_copy(update={"env": config.env.model_copy(update={"data": str(data)})})


@app.command("export")
def export_run(
    run: Annotated[Path, typer.Argument(help="run directory")],
    out: Annotated[Path, typer.Argument(help="file to write: .jsonl, .jsonl.gz or .parquet")],
    lost: Annotated[bool, typer.Option("--lost", help="also the steps of lost episodes")] = False,
) -> None:
    """Write the steps of a run's won training episodes, with returns and advantages, as a table."""
    from hgpo_rllib.results.export import export_steps

    typer.echo(f"{out}: {export_steps(run, out, lost)} steps")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _default_data() -> Path:
    # The alfworld package's own default if the environment variable is not set.
    from alfworld.info import ALFWORLD_DATA

    return Path(ALFWORLD_DATA)


def _counts(found: "TreeCheck") -> dict[str, dict[str, Counter[str]]]:
    """Count games by split, family and result of the check."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    for game in found.games:
        row = counts.setdefault(game.split, {}).setdefault(game.family, Counter())
        row["games"] += 1
        row["replayed"] += game.replayed
        row["skipped"] += game.skipped
        row["broken"] += game.fault is not None
    return counts


def _print_check(data: Path, found: "TreeCheck", replay: bool) -> None:
    columns = [name for name in COUNTS if replay or name != "replayed"]
    typer.echo(f"{data} ({found.kind})")
    counts = {
        (split, family): row
        for split, families in _counts(found).items()
        for family, row in sorted(families.items())
    }
    counts["all", ""] = sum(counts.values(), Counter())
    print_rows(
        [
            {"split": split, "family": family} | {name: row[name] for name in columns}
            for (split, family), row in counts.items()
        ]
    )
    for file, why in found.broken.items():
        typer.echo(f"broken: {file}: {why}")
