"""`hgpo serve`: serve a policy to clients of OpenAI's API."""

from typing import Annotated

import typer


def serve(
    checkpoint: Annotated[
        str, typer.Argument(help="run directory, HuggingFace directory, or name on the hub")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="settings to override, as section.key=value"),
    ] = None,
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
    from hgpo_rllib.run.checkpoint import find_policy

    endpoint = make_endpoint(host, port, name, metrics)
    serve_policy(find_policy(checkpoint, overrides or []), endpoint, shutdown_timeout)
