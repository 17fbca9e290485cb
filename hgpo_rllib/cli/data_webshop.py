"""`hgpo data … webshop`: generate and check stores, and print results to standard output."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hgpo_rllib.cli.output import JsonOption
from hgpo_rllib.cli.progress import generate_data, progress
from hgpo_rllib.config import ConfigError

if TYPE_CHECKING:
    from env_wrappers.webshop.check import CatalogueCheck

SHOWN = 20  # maximum number of broken items to print


def generate_webshop(
    out: Annotated[Path, typer.Argument(help="directory to create")],
    products: Annotated[int, typer.Option(help="number of products, up to millions")] = 400,
    seed: Annotated[int, typer.Option(help="the same seed gives the same products")] = 0,
    lookalikes: Annotated[
        int,
        typer.Option(
            help="number of products of the same brand and kind, 1 to 6; if several, only their "
            "pages tell which one is wanted"
        ),
    ] = 3,
    instructed: Annotated[
        float, typer.Option(help="share of the products that get synthetic goals")
    ] = 0.9,
    human: Annotated[
        float,
        typer.Option(help="share of these products that also get a human goal, worded freely"),
    ] = 0.25,
) -> None:
    """Generate a WebShop store; a second call with the same options does nothing."""
    from env_wrappers.webshop.generator import generate
    from env_wrappers.webshop.synthetic_products import CatalogueSpec

    spec = CatalogueSpec(products, seed, lookalikes, instructed, human)
    generate_data(out, "products", products, lambda progress: generate(out, spec, progress))


def check_webshop(
    data: Annotated[
        Path | None,
        typer.Argument(
            help="directory of the product files (default: $WEBSHOP_DATA)", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="also let an oracle play the goals, which must earn 1.0"),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(help="number of goals of each kind to play, taken evenly (default: all)"),
    ] = None,
) -> None:
    """Count products and goals, and name what is broken (exit code 1).

    In a generated store, a goal that the oracle misses is an error. In other data, missed goals are
    only counted.
    """
    from env_wrappers.webshop.check import check_catalogue

    if limit is not None and limit < 1:
        raise ConfigError("--limit must be at least 1")
    with progress("playing goals") as on_progress:
        found = check_catalogue(data, replay, limit, on_progress)
    name = str(data) if data is not None else "$WEBSHOP_DATA"
    if as_json:
        typer.echo(json.dumps(_as_json(name, found)))
    else:
        _print(name, found)
    if found.broken:
        raise typer.Exit(1)


def _as_json(data: str, found: "CatalogueCheck") -> dict[str, Any]:
    return {
        "data": data,
        "kind": found.kind,
        "products": found.departments.total(),
        "departments": found.departments,
        "skipped": found.skipped,
        "goals": {
            kind: {
                "splits": check.splits,
                "replayed": len(check.replayed),
                "missed": check.missed,
            }
            for kind, check in found.goals.items()
        },
        "broken": [{"name": name, "reason": why} for name, why in found.broken.items()],
    }


def _print(data: str, found: "CatalogueCheck") -> None:
    products = found.departments.total()
    typer.echo(f"{data} ({found.kind}): {products} products: {_counts(found.departments)}")
    skipped = {why: count for why, count in found.skipped.items() if count}
    if skipped:
        typer.echo(f"records skipped: {_counts(skipped)}")
    for kind, check in found.goals.items():
        typer.echo(f"{kind} goals: {sum(check.splits.values())}: {_counts(check.splits)}")
        if check.replayed:
            earned = len(check.replayed) - len(check.missed)
            typer.echo(f"{kind} goals played: {len(check.replayed)}, earned 1.0: {earned}")
    for name, why in list(found.broken.items())[:SHOWN]:
        typer.echo(f"broken: {name}: {why}")
    if len(found.broken) > SHOWN:
        typer.echo(f"and {len(found.broken) - SHOWN} more; --json names all")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
