"""Descriptions of models and agents in a protocol, and what its hash depends on."""

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from env_wrappers.files import json_hash
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.environments.spec import digest
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.chat import RemoteModel
from hgpo_rllib.evaluation.protocol import (
    describe_agent,
    describe_model,
    recording,
    versions,
)
from hgpo_rllib.run.lock import LOCK


def write_model(folder: Path, weights: bytes = b"w") -> RunConfig:
    """Write the files of a model, and return settings that name it."""
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text("{}")
    (folder / "notes.md").write_text("not a part of it")
    return load_config(None, [f"model.model_path={folder}"])


def test_a_model_is_its_files(tmp_path: Path) -> None:
    """Models are identified by their files' content, independent of the folder."""
    described = describe_model(write_model(tmp_path / "a"))
    assert described["weights_sha256"] == {"model.safetensors": digest(b"w")}
    assert described["files_sha256"] == {"config.json": digest(b"{}")}
    assert describe_model(write_model(tmp_path / "b")) == described
    assert describe_model(write_model(tmp_path / "c", b"other")) != described


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("engine", "other"),
        ("num_replicas", 2),
        ("max_num_seqs", 7),
        ("tensor_parallel_size", 2),
        ("replica_gpus", 1),
        ("enforce_eager", False),
        ("enable_prefix_caching", False),
    ],
)
def test_a_model_is_how_it_is_served(tmp_path: Path, name: str, value: object) -> None:
    """Other engines and batches, compiled kernels and cached prefills change the last digits."""
    config = write_model(tmp_path / "a")
    changed = config.policy_server.model_copy(update={name: value})
    described = describe_model(config.model_copy(update={"policy_server": changed}))
    assert described != describe_model(config)


def test_a_model_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of the hub is described by its files in the local cache, without a network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    cached = tmp_path / "models--some--model"
    write_model(cached / "snapshots" / "0123")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123")
    described = describe_model(load_config(None, ["model.model_path=some/model"]))
    assert described["weights_sha256"] == {"model.safetensors": digest(b"w")}


def test_an_agent_is_its_texts_and_rules(tmp_path: Path) -> None:
    """Templates are compared by content, not by path, and settings by value."""
    files = [tmp_path / name / "own.jinja" for name in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("{{ goal }}")

    def described(file: Path, *overrides: str) -> str:
        config = load_config(None, [f"agent.prompt={file}", *overrides])
        return json_hash(describe_agent("hgpo", config, 1))

    assert described(files[0]) == described(files[1])
    assert described(files[0]) != described(files[0], "agent.inadmissible_is_invalid=true")
    assert described(files[0]) != described(files[0], "agent.memory_length=1")
    files[1].write_text("{{ goal }}!")
    assert described(files[0]) != described(files[1])


def test_an_endpoint_shows_no_secrets() -> None:
    """The description has only the address and the model's name."""
    described = RemoteModel("https://user:secret@host:8000/v1", "policy", 0.4).describe()
    assert described == {"served_by": "openai", "address": "host:8000/v1", "name": "policy"}


def test_versions() -> None:
    """Packages of the model are listed only if one is used, those of the environment always."""
    assert {"torch", "transformers", "ray"} <= versions((), asks_model=True).keys()
    assert not {"torch", "ray", "alfworld"} & versions((), asks_model=False).keys()
    assert "alfworld" in versions(("alfworld", "not-installed"), asks_model=False)


def test_a_directory_of_a_command_that_was_killed_at_once(tmp_path: Path) -> None:
    """A directory with a lock file and a partial protocol can be used again."""
    (tmp_path / LOCK).touch()
    (tmp_path / ".protocol.json.01ab.partial").write_text("{")
    for _ in range(2):
        with recording(tmp_path, {"seeds": [0]}):
            assert json.loads((tmp_path / "protocol.json").read_text()) == {"seeds": [0]}
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write to"), recording(tmp_path / "file", {}):
        pass
