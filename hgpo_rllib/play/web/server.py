"""Serve an application to browsers on this machine, and to no others."""

import socket

import uvicorn
from starlette.applications import Starlette

from hgpo_rllib.config import ConfigError

HOST = "127.0.0.1"
PORT = 3000


def serve(app: Starlette, port: int | None) -> None:
    """Serve until interrupted, and print the address first.

    Args:
        app: what answers.
        port: where on the loopback address; None: `PORT`, 0: any free one.

    Raises:
        ConfigError: the port cannot be used.
    """
    port = PORT if port is None else port
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen()  # who reads the address can come at once
        except OSError as error:
            raise ConfigError(
                f"--port {port} cannot be used ({error.strerror}): choose another, or 0 for any"
            ) from error
        print(f"http://{HOST}:{listener.getsockname()[1]}/ (Ctrl+C ends)", flush=True)
        # A browser keeps its connection open: do not wait for it.
        config = uvicorn.Config(
            app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1
        )
        uvicorn.Server(config).run(sockets=[listener])
