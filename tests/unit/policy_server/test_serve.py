"""`hgpo serve` without vLLM: the policy, endpoint, arguments, environment and tokenizer."""

import dataclasses
import json
import os
import shutil
import socket
from functools import partial
from pathlib import Path

import pytest
from safetensors.numpy import save_file
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config

from hgpo_rllib import models
from hgpo_rllib.config import load_config, save_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.chat import api_key
from hgpo_rllib.models import load_tokenizer
from hgpo_rllib.policy_server import openai_server
from hgpo_rllib.policy_server.openai_middleware import OpenAIPathsAndMetrics, OpenAIPathsOnly
from hgpo_rllib.policy_server.openai_server import KEY_VARIABLE, Endpoint
from hgpo_rllib.run.checkpoint import load_policy_config
from hgpo_rllib.run.checkpoint_files import MANIFEST, write_folder
from hgpo_rllib.settings.policy_server import PolicyServerSettings
from hgpo_rllib.warmstart.tokenizer import train_tokenizer
from tests.processes import free_port
from tests.unit.cli.command import assert_refused

TEXT = "You are in the bathroom. On the cabinet 4, you see a soapbottle 2."
ENDPOINT = Endpoint("127.0.0.1", 8000, "policy", "secret")
PATHS = ("/health", "/v1/models", "/metrics", "/invocations", "/v1", "/v1x", "//v1/models")
SERVER = Starlette(
    routes=[Route(path, lambda request: PlainTextResponse("here")) for path in PATHS]
)
"""Answers at some of the paths that vLLM's server has."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model directory with a tokenizer like the pocket model's."""
    folder = tmp_path / "model"
    Qwen2Config(max_position_embeddings=512).save_pretrained(folder)
    train_tokenizer([TEXT], ["you", "are", "in", "the", "on", "a"], 300).save_pretrained(folder)
    save_file({}, folder / "model.safetensors")
    return folder


@pytest.fixture
def run(tmp_path: Path, model: Path) -> Path:
    """Return a run directory whose checkpoint is `model`."""
    folder = tmp_path / "run"
    folder.mkdir()
    save_config(load_config(None, ["model.dtype=float32", "seed=7"]), folder / "config.yaml")
    model.rename(folder / "checkpoint")
    return folder


class TestFindPolicy:
    def test_a_run(self, run: Path) -> None:
        """A run is served from its last checkpoint, with its settings and the overrides."""
        config = load_policy_config(str(run), ["policy_server.max_num_seqs=3"])
        assert config.model.model_path == str(run / "checkpoint")
        assert (config.model.dtype, config.seed) == ("float32", 7)
        assert config.policy_server.max_num_seqs == 3

    def test_the_best_of_a_run(self, run: Path) -> None:
        """A run's `best` uses the run's settings; any other folder in it is a plain model."""
        for name in ("best", "other"):
            shutil.copytree(run / "checkpoint", run / name)
        assert load_policy_config(str(run / "best"), []).seed == 7
        assert load_policy_config(str(run / "best"), []).model.model_path == str(run / "best")
        assert load_policy_config(str(run / "other"), []).seed == 0

    def test_a_model(self, model: Path) -> None:
        config = load_policy_config(str(model), ["model.dtype=float32"])
        expected = load_config(None, ["model.dtype=float32", f"model.model_path={model}"])
        assert config == expected

    @pytest.mark.parametrize(
        ("checkpoint", "override", "named"),
        [
            ("{tmp}/nothing", "seed=1", "{tmp}/nothing does not exist"),
            ("./nothing", "seed=1", "./nothing does not exist"),
            ("tests/nothing", "seed=1", "tests/nothing does not exist"),
            ("{tmp}", "seed=1", "{tmp} holds no config.json"),
            ("{tmp}/run/config.yaml", "seed=1", "holds no config.json"),
            ("{tmp}/run", "seeds=1", "unknown config key seeds"),
            ("{tmp}/run", "model.model_path=x", "CHECKPOINT, {tmp}/run: leave it out"),
        ],
    )
    def test_refusals(
        self, tmp_path: Path, run: Path, checkpoint: str, override: str, named: str
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            load_policy_config(checkpoint.format(tmp=tmp_path), [override])
        assert named.format(tmp=tmp_path) in str(caught.value)

    def test_unfinished_runs_and_models(self, run: Path) -> None:
        """An unfinished run or model raises an error that names the missing part."""
        for name in ("model.safetensors", "config.json"):
            (run / "checkpoint" / name).rename(run / name)
            with pytest.raises(ConfigError, match=name.replace("model", r"\*")):
                load_policy_config(str(run), [])
        (run / "checkpoint").rename(run / "elsewhere")
        with pytest.raises(ConfigError, match="holds no checkpoint"):
            load_policy_config(str(run), [])

    @pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", MANIFEST])
    def test_a_damaged_checkpoint(self, run: Path, name: str) -> None:
        """The error names the damaged file, and the run's other policy if there is one."""
        for folder in (run / "checkpoint", run / "best"):
            write_folder(folder, lambda path: shutil.copytree(run / "checkpoint", path))
        assert load_policy_config(str(run), []).seed == 7
        with (run / "checkpoint" / name).open("r+b") as file:
            file.write(b"damaged")
        refused = f"{run}/checkpoint is damaged: {name} .*: restore it from a copy"
        with pytest.raises(ConfigError, match=f"{refused}, or use {run}/best$"):
            load_policy_config(str(run), [])
        assert load_policy_config(str(run / "best"), []).seed == 7
        shutil.rmtree(run / "best")
        with pytest.raises(ConfigError, match=f"{refused}$"):
            load_policy_config(str(run / "checkpoint"), [])

    def test_as_a_command(self, tmp_path: Path) -> None:
        """Errors are one line with exit code 2, for an unknown model and for a missing API key."""
        for folder in (tmp_path / "a", tmp_path / "b"):
            folder.mkdir()
        assert_refused(tmp_path / "a", ["serve", "some/model"], ["CHECKPOINT: some/model is no"])
        assert_refused(
            tmp_path / "b", ["serve", "some/model", "--host", "0.0.0.0"], ["$HGPO_API_KEY"]
        )


class TestEndpoint:
    def test_loopback_needs_no_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(KEY_VARIABLE, "")
        port = free_port()
        for host in ("127.0.0.1", "localhost"):
            endpoint = openai_server.make_endpoint(host, port, "policy")
            assert endpoint == Endpoint("127.0.0.1", port, "policy", None)
        assert endpoint.url == f"http://127.0.0.1:{port}"
        assert Endpoint("::1", 80, "policy", None).url == "http://[::1]:80"

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "::ffff:127.0.0.1"])
    def test_others_need_one(self, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
        monkeypatch.delenv(KEY_VARIABLE, raising=False)
        with pytest.raises(ConfigError, match=rf"--host {host}: .*\$HGPO_API_KEY"):
            openai_server.make_endpoint(host, free_port(), "policy")

    def test_the_key_is_taken_and_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(KEY_VARIABLE, "secret")
        port = free_port()
        for host in ("127.0.0.1", "0.0.0.0"):
            endpoint = openai_server.make_endpoint(host, port, "policy")
            assert (endpoint.address, endpoint.key) == (host, "secret")
            shown = openai_server.describe(endpoint, {"dtype": "float32", "max_model_len": 1})
            assert "secret" not in f"{endpoint}{shown}"
            assert "$HGPO_API_KEY" in shown

    def test_the_example_is_a_request(self) -> None:
        """The example request has a JSON body that names the model."""
        shown = openai_server.describe(ENDPOINT, {"dtype": "float32", "max_model_len": 1})
        body = json.loads(shown.partition("-d '")[2].removesuffix("'"))
        assert body["model"] == "policy"

    def test_addresses_that_cannot_be_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A port in use, an address of another machine and an invalid host name are refused."""
        monkeypatch.setenv(KEY_VARIABLE, "secret")
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(ConfigError, match=f"--port {port} cannot be used .*in use"):
                openai_server.make_endpoint("127.0.0.1", port, "policy")
        with pytest.raises(ConfigError, match=r"--host 192.0.2.1 .* cannot be used"):
            openai_server.make_endpoint("192.0.2.1", port, "policy")
        for host in ("a..b", "x" * 64):
            with pytest.raises(ConfigError, match=rf"--host {host} .*\(not a host name\)"):
                openai_server.make_endpoint(host, port, "policy")

    @pytest.mark.parametrize("key", ["a\n", " a", "ü"])
    def test_keys_that_no_request_can_have(self, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """As of a mounted secret that ends with a line break."""
        monkeypatch.setenv(KEY_VARIABLE, key)
        for read in (partial(openai_server.make_endpoint, "127.0.0.1", 0, "policy"), api_key):
            with pytest.raises(ConfigError, match=r"\$HGPO_API_KEY: use printable ASCII"):
                read()

    def test_paths(self) -> None:
        """Only paths that the key guards, and /health, are served."""
        client = TestClient(OpenAIPathsOnly(SERVER))
        answers = {path: client.get(f"http://testserver{path}").status_code for path in PATHS}
        assert [path for path, status in answers.items() if status == 200] == list(PATHS[:2])
        assert {answers[path] for path in PATHS[2:]} == {404}

    def test_metrics_take_the_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """/metrics requires the key if there is one, which vLLM itself would not check there."""
        monkeypatch.setenv("VLLM_API_KEY", "secret")
        client = TestClient(OpenAIPathsAndMetrics(SERVER))
        for shown in ("", "Bearer", "Bearer another", "Basic secret", "secret"):
            assert client.get("/metrics", headers={"Authorization": shown}).status_code == 401
        assert client.get("/metrics").status_code == 401
        for shown in ("Bearer secret", "bearer secret"):  # as for vLLM, case does not matter
            assert client.get("/metrics", headers={"Authorization": shown}).text == "here"
        assert client.get("/health").status_code == 200
        assert client.get("/invocations").status_code == 404
        monkeypatch.delenv("VLLM_API_KEY")
        assert TestClient(OpenAIPathsAndMetrics(SERVER)).get("/metrics").text == "here"


class TestArguments:
    def test_of_the_server(self, run: Path) -> None:
        """Requests are no longer than the model's limit, and the key is not among the arguments."""
        config = load_policy_config(str(run), ["policy_server.max_num_seqs=3"])
        arguments = openai_server.server_arguments(config, ENDPOINT, "/tokenizer")
        expected = {
            "model": str(run / "checkpoint"),
            "tokenizer": "/tokenizer",
            "served_model_name": "policy",
            "host": "127.0.0.1",
            "port": 8000,
            "dtype": "float32",
            "seed": 7,
            "max_num_seqs": 3,
            "max_model_len": 512,
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",
            "structured_outputs_config": '{"backend": "xgrammar"}',
        }
        assert {key: arguments[key] for key in expected} == expected
        assert arguments.keys().isdisjoint(openai_server.TRAINING_ONLY_ARGUMENTS)
        assert "secret" not in str(arguments)
        shorter = config.agent.model_copy(
            update={"max_prompt_tokens": 300, "max_response_tokens": 50}
        )
        config = config.model_copy(update={"agent": shorter})
        arguments = openai_server.server_arguments(config, ENDPOINT, "/tokenizer")
        assert arguments["max_model_len"] == 350

    def test_as_words(self) -> None:
        arguments = {
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "model": "a/model",
            "served_model_name": "a_b",
            "middleware": ["a.B", "c.D"],
        }
        assert openai_server.server_command(arguments)[3:] == [
            "--enforce-eager",
            "--no-enable-prefix-caching",
            "--model=a/model",
            "--served-model-name=a_b",
            "--middleware=a.B",
            "--middleware=c.D",
        ]

    def test_metrics_are_off_unless_asked_for(self, run: Path) -> None:
        """vLLM collects statistics only if metrics are enabled."""
        config = load_policy_config(str(run), [])
        arguments = openai_server.server_arguments(config, ENDPOINT, "/tokenizer")
        assert arguments["disable_log_stats"] is True
        assert openai_server.PATHS in arguments["middleware"]
        endpoint = dataclasses.replace(ENDPOINT, metrics=True)
        arguments = openai_server.server_arguments(config, endpoint, "/tokenizer")
        assert "disable_log_stats" not in arguments
        assert openai_server.PATHS_AND_METRICS in arguments["middleware"]

    def test_environment(self, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The environment sets vLLM's key and turns off usage statistics and hub access."""
        monkeypatch.setenv(KEY_VARIABLE, "secret")
        monkeypatch.setenv("VLLM_API_KEY", "another")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        changes = [f"model.model_path={model}", "policy_server.max_num_seqs=3"]
        config = load_config(None, changes)
        environment = openai_server.server_env_vars(config, "secret", "/folder")
        assert environment["VLLM_API_KEY"] == "secret"
        assert (environment["VLLM_NO_USAGE_STATS"], environment["HF_HUB_OFFLINE"]) == ("1", "1")
        assert environment["VLLM_HOST_IP"] == "127.0.0.1"
        assert environment["PATH"] == os.environ["PATH"]
        limits = ("VLLM_MAX_N_SEQUENCES", "VLLM_MAX_COMPLETION_PROMPTS")
        assert [environment[name] for name in limits] == ["3", "3"]
        assert environment["TMPDIR"] == "/folder"
        environment = openai_server.server_env_vars(config, None, "/a-long-path" * 10)
        assert environment.get("TMPDIR") == os.environ.get("TMPDIR"), "too long for a socket"
        config = load_config(None, ["model.model_path=some/model"])
        environment = openai_server.server_env_vars(config, None, "/folder")
        assert environment.keys().isdisjoint(["VLLM_API_KEY", KEY_VARIABLE, "HF_HUB_OFFLINE"])

    def test_devices(self) -> None:
        """Settings for a device other than that of the installed vLLM are refused."""
        on_cpu, on_gpu = PolicyServerSettings(), PolicyServerSettings(replica_gpus=0.5)
        openai_server.check_device(on_cpu, for_cpu=True)
        openai_server.check_device(on_gpu, for_cpu=False)
        with pytest.raises(ConfigError, match=r"add policy_server.replica_gpus=0"):
            openai_server.check_device(on_gpu, for_cpu=True)
        with pytest.raises(ConfigError, match=r"add policy_server.replica_gpus=1"):
            openai_server.check_device(on_cpu, for_cpu=False)

    def test_tokenizer(self, model: Path, tmp_path: Path) -> None:
        """The written tokenizer gives the tokens of training, unlike the model's directory."""
        folder = tmp_path / "tokenizer"
        models.write_tokenizer(str(model), folder)
        given, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(str(model))
        assert given(TEXT)["input_ids"] == ours(TEXT)["input_ids"]
        assert len(given) == len(ours)
        assert given.chat_template == ours.chat_template
        assert (given.eos_token, given.pad_token) == (ours.eos_token, ours.pad_token)
        rebuilt = AutoTokenizer.from_pretrained(model)
        assert rebuilt(TEXT)["input_ids"] != ours(TEXT)["input_ids"], (
            "write_tokenizer is not needed any more"
        )
        assert isinstance(given, PreTrainedTokenizerFast)

    def test_no_tokenizer(self, model: Path, tmp_path: Path) -> None:
        (model / "tokenizer.json").unlink()
        with pytest.raises(ConfigError, match=r"holds no tokenizer.json"):
            models.write_tokenizer(str(model), tmp_path / "tokenizer")
