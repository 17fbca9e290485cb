"""Serve an application to browsers on this machine only."""

import socket

import uvicorn
from starlette.applications import Starlette

from hgpo_rllib.config import ConfigError

HOST = "127.0.0.1"
PORT = 3000


def serve(app: Starlette, port: int | None) -> None:
    """Print the address, then serve until interrupted.

    Args:
        app: the application.
        port: port on the loopback address; None: `PORT`, 0: any free one.

    Raises:
        ConfigError: the port cannot be used.
    """
    port = PORT if port is None else port
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen()  # accept connections before the address is printed
        except OSError as error:
            raise ConfigError(
                f"--port {port} cannot be used ({error.strerror}): choose another, or 0 for any"
            ) from error
        print(f"http://{HOST}:{listener.getsockname()[1]}/ (Ctrl+C ends)", flush=True)
        # Browsers keep connections open: do not wait for them to close.
        config = uvicorn.Config(
            app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1
        )
        uvicorn.Server(config).run(sockets=[listener])
