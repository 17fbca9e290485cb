"""`hgpo data …`: generate and check games and stores; write demonstrations and recorded steps."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hgpo_rllib.cli.common import Overrides, RunFile, print_rows, progress, writing
from hgpo_rllib.config import load_config
from hgpo_rllib.errors import ConfigError

if TYPE_CHECKING:
    from env_wrappers.alfworld.check import TreeCheck
    from env_wrappers.webshop.check import CatalogueCheck

app = typer.Typer(
    help="Generate and check game data; write demonstrations and recorded steps.",
    no_args_is_help=True,
)
check_app = typer.Typer(
    help="Count the contents of game data, and report what is broken.", no_args_is_help=True
)
app.add_typer(check_app, name="check")

_MAX_NAMED = 10  # left-out episodes that are listed; an expert may fail at hundreds of goals
TrustedOption = Annotated[
    bool,
    typer.Option("--trusted", help="accept grammars that are not ALFWorld's: they can run code"),
]


@app.command("generate")
def generate(
    env: Annotated[str, typer.Argument(metavar="ENV", help="alfworld or webshop")],
    out: Annotated[Path, typer.Argument(help="directory to create")],
    overrides: Overrides = None,
) -> None:
    """Generate ALFWorld games, or a WebShop store, as `hgpo train` does from the same settings.

    The settings are in the sections games and store: games.train=100, store.products=400. A second
    call with the same settings does nothing.
    """
    from hgpo_rllib.environments import environment_id, find_environment

    env_id = environment_id(env)
    config = load_config(None, [f"env.env_id={env_id}", *(overrides or [])])
    generator = find_environment(env_id).data_generator(config)
    if generator is None:
        raise ConfigError(f"{env}: no data are generated for it: choose alfworld or webshop")
    with writing(out):
        exists = out.is_dir() and any(out.iterdir())
        with progress("generating data") as on_progress:
            generator.make_data(config, out, on_progress)
    typer.echo(f"{out}: these data already exist" if exists else f"{out}: generated")


@check_app.command("alfworld")
def check_alfworld(
    data: Annotated[
        Path | None,
        typer.Argument(
            help="directory with json_2.1.1 (default: $ALFWORLD_DATA)", show_default=False
        ),
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="also play every recorded walkthrough, which must win")
    ] = False,
    trusted: TrustedOption = False,
) -> None:
    """Count the games per split and task type, and name broken files (exit code 1)."""
    from env_wrappers.alfworld.check import check_tree
    from env_wrappers.alfworld.games import find_tree

    with progress("checking games") as on_progress:
        found = check_tree(data, replay, trusted, on_progress)
    _print_games(data or find_tree(None).parent, found, replay)
    if found.broken:
        raise typer.Exit(1)


@check_app.command("webshop")
def check_webshop(
    data: Annotated[
        Path | None,
        typer.Argument(
            help="directory of the product files (default: $WEBSHOP_DATA)", show_default=False
        ),
    ] = None,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="also let an oracle play the goals, which must earn 1.0"),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="number of goals of each kind to play, taken evenly (default: all)"
        ),
    ] = None,
) -> None:
    """Count products and goals, and name what is broken (exit code 1).

    In a generated store, a goal that the oracle misses is an error. In other data, missed goals are
    only counted.
    """
    from env_wrappers.webshop.check import check_catalogue

    if limit is not None and not replay:
        raise ConfigError("--limit needs --replay: add it, or remove --limit")
    with progress("playing goals") as on_progress:
        found = check_catalogue(data, replay, limit, on_progress)
    _print_store("$WEBSHOP_DATA" if data is None else str(data), found)
    if found.broken:
        raise typer.Exit(1)


@app.command("demos")
def write_demonstrations(
    config: RunFile,
    out: Annotated[Path, typer.Argument(help="file to write; compressed if it ends in .gz")],
    overrides: Overrides = None,
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
    from hgpo_rllib.environments import find_environment
    from hgpo_rllib.environments.checks import check_no_strategies
    from hgpo_rllib.play.demos import find_expert, write_demos
    from hgpo_rllib.warmstart import prepare

    run = load_config(config, overrides or [])
    check_no_strategies(run, "hgpo data demos")
    run, _ = find_environment(run.env.env_id).find_split(run, run.env.train_split)
    find_expert(expert, run.env)  # an unknown name ends the command before data are generated
    environment = find_environment(run.env.env_id)
    if environment.data_generator(run) is not None:
        with progress("generating data") as on_progress:
            data = str(prepare.make_data(run, on_progress))
        run = environment.with_data(run, lambda _: data)
    environment.check(run, run.env.train_split)
    with progress("demonstrating tasks") as on_progress, writing(out):
        demos = write_demos(out, run, expert, repeats, seed, limit, on_progress)
    left_out = [demo for demo in demos if demo.left_out]
    for demo in left_out[:_MAX_NAMED]:
        typer.echo(f"left out {demo.game}: {demo.left_out}", err=True)
    if len(left_out) > _MAX_NAMED:
        typer.echo(f"left out {len(left_out) - _MAX_NAMED} more", err=True)
    count = sum(len(demo.records) for demo in demos)
    what = "steps" if run.agent.context == "window" else "conversations"
    tasks = len({demo.game for demo in demos if demo.records})
    typer.echo(f"{out}: {count} {what} of {tasks} tasks, {len(left_out)} episodes left out")


@app.command("export")
def export_run(
    run: Annotated[Path, typer.Argument(help="run directory")],
    out: Annotated[
        Path | None,
        typer.Argument(
            help="file to write: .jsonl, .jsonl.gz or .parquet (default: RUN/steps_FORMAT.parquet)"
        ),
    ] = None,
    lost: Annotated[bool, typer.Option("--lost", help="also the steps of lost episodes")] = False,
    form: Annotated[
        Literal["sft", "hf"],
        typer.Option(
            "--format",
            help="names of the texts: rendered_prompt and response, for `hgpo sft`, or prompt and "
            "completion, for trl",
        ),
    ] = "sft",
) -> None:
    """Write the steps of a run's won training episodes, with returns and advantages, as a table."""
    from hgpo_rllib.results.export import export_steps

    out = out or run / f"steps_{form}.parquet"
    with writing(out):
        count = export_steps(run, out, lost, form)
    typer.echo(f"{out}: {count} steps")


def _print_games(data: Path, found: "TreeCheck", replay: bool) -> None:
    typer.echo(f"{data} ({found.kind})")
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for game in found.games:
        row = {"games": 1, "replayed": game.replayed, "skipped": game.skipped}
        counts[game.split, game.task_type].update(row | {"broken": game.fault is not None})
    counts["all", ""] = sum(counts.values(), Counter())
    columns = ["games", *["replayed"] * replay, "skipped", "broken"]
    print_rows(
        [
            {"split": split, "task_type": task_type} | {name: row[name] for name in columns}
            for (split, task_type), row in counts.items()
        ]
    )
    for file, why in found.broken.items():
        typer.echo(f"broken: {file}: {why}")


def _print_store(data: str, found: "CatalogueCheck") -> None:
    products = found.departments.total()
    typer.echo(f"{data} ({found.kind}): {products} products: {_listed(found.departments)}")
    skipped = {why: count for why, count in found.skipped.items() if count}
    if skipped:
        typer.echo(f"records skipped: {_listed(skipped)}")
    for kind, check in found.goals.items():
        typer.echo(f"{kind} goals: {check.count}: {_listed(check.splits)}")
        if check.replayed:
            earned = len(check.replayed) - len(check.missed)
            typer.echo(f"{kind} goals played: {len(check.replayed)}, earned 1.0: {earned}")
    for name, why in found.broken.items():
        typer.echo(f"broken: {name}: {why}")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
