"""`hgpo evaluate`, `hgpo compare`, `hgpo serve`: evaluate and serve policies."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hgpo_rllib.cli.common import JsonOption, Overrides, progress
from hgpo_rllib.reporting.console import make_console

EnvOption = Annotated[
    str | None,
    typer.Option(
        help="alfworld, webshop, textcraft, scienceworld or a Gymnasium id (default: that of the "
        "run)"
    ),
]
SplitOption = Annotated[
    str | None,
    typer.Option(
        help="split to play (default: valid_seen for ALFWorld, test for WebShop, TextCraft and "
        "ScienceWorld, otherwise the first of evaluation.splits)"
    ),
]
DataOption = Annotated[
    Path | None, typer.Option(help="data of the environment (default: the run's)")
]
NameOption = Annotated[
    str | None, typer.Option(help="name of the model behind a URL (default: the only one)")
]


def evaluate(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [KEY=VALUE]...",
            help="run directory, HuggingFace directory or name, or URL of an OpenAI-compatible "
            "server; then settings as section.key=value",
        ),
    ] = None,
    env: EnvOption = None,
    split: SplitOption = None,
    agent: Annotated[
        str,
        typer.Option(
            help="hgpo, vanilla, react, reflexion, random, oracle or human; for ALFWorld also "
            "explorer or planner; for WebShop also first-hit, first-hit-options, careful or "
            "exhaustive; for TextCraft also careful or wasteful"
        ),
    ] = "hgpo",
    protocol: Annotated[
        str,
        typer.Option(
            help="full: every game; released: random draws, as in the released agents' validation"
        ),
    ] = "full",
    data: DataOption = None,
    games: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="play only the first N games of the fixed order (default: all); with --protocol "
            "released, draw N per seed (default: 512)",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="how often --protocol full plays each game (default: 3; oracle and human: 1)",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="episodes per task of the agent reflexion (default: 3)"),
    ] = None,
    name: NameOption = None,
    output: Annotated[
        Path | None,
        typer.Option(help="output directory (default: evaluations/<name of the protocol>)"),
    ] = None,
) -> None:
    """Play held-out games by a fixed protocol; continues an interrupted evaluation."""
    from hgpo_rllib.evaluation.evaluate import evaluate as run_evaluation
    from hgpo_rllib.evaluation.request import make_request
    from hgpo_rllib.evaluation.show import show_evaluation

    request = make_request(
        words or [], env, split, agent, protocol, data, games, seeds, trials, name, output
    )
    again = "repeat the command to continue after the finished episodes"
    with progress("playing", interrupted=again, bar=agent != "human") as on_progress:
        finished = run_evaluation(request, on_progress)
    show_evaluation(finished, make_console())


def compare(
    a: Annotated[Path, typer.Argument(help="directory of an evaluation")],
    b: Annotated[Path, typer.Argument(help="directory of another evaluation of the same games")],
    common: Annotated[
        bool, typer.Option("--common", help="compare only games that both evaluations have")
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="regular expression: games in whose names it matches the same text are "
            "resampled together ('^[^:]+' matches the product of a WebShop goal)",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Test whether B is better than A: a paired interval and test on the games of both."""
    from hgpo_rllib.evaluation.compare import compare as run_comparison
    from hgpo_rllib.evaluation.show import show_comparison
    from hgpo_rllib.results import load_evaluation

    left, right = load_evaluation(a), load_evaluation(b)
    comparison = run_comparison(left, right, common, cluster)
    if as_json:
        typer.echo(json.dumps({"a": str(a), "b": str(b), **asdict(comparison)}))
        return
    show_comparison(left, right, comparison, make_console())


def serve(
    checkpoint: Annotated[
        str, typer.Argument(help="run directory, HuggingFace directory, or name on the hub")
    ],
    overrides: Overrides = None,
    host: Annotated[
        str, typer.Option(help="address to listen on; all but loopback require $HGPO_API_KEY")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on", min=1, max=65535)] = 8000,
    name: Annotated[str, typer.Option(help="name of the model in requests")] = "policy",
    metrics: Annotated[
        bool,
        typer.Option("--metrics", help="serve /metrics for Prometheus; it requires the same key"),
    ] = False,
    shutdown_timeout: Annotated[
        float,
        typer.Option(
            help="seconds that running requests get to finish after Ctrl-C or SIGTERM", min=0
        ),
    ] = 30,
) -> None:
    """Serve a policy through vLLM's OpenAI-compatible server until Ctrl-C."""
    from hgpo_rllib.policy_server.openai_server import make_endpoint, serve_policy
    from hgpo_rllib.run.checkpoint import load_policy_config

    endpoint = make_endpoint(host, port, name, metrics)
    config = load_policy_config(checkpoint, overrides or []).without_learners()
    serve_policy(config, endpoint, shutdown_timeout)
