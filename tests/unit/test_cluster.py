"""What is checked before Ray starts, and what stays of a killed run."""

import os
import socket
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from hgpo_rllib.config import ConfigError
from hgpo_rllib.policy_server import weights
from hgpo_rllib.run.cluster import LOOPBACK, check_port_is_free


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as server:
        server.bind((LOOPBACK, 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use"):
            check_port_is_free(port)
    check_port_is_free(port)


@pytest.fixture
def model() -> Qwen2ForCausalLM:
    """A random model with tied embeddings."""
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        intermediate_size=32,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config)


def test_publishing_keeps_the_latest_two_versions(
    model: Qwen2ForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "SHARED_MEMORY", tmp_path)
    publisher = weights.WeightPublisher(torch.float32)
    tags = [publisher.publish(model) for _ in range(4)]
    assert len({tag.version for tag in tags}) == 4
    there = [Path(tag.path or "").is_dir() for tag in tags]
    assert there == [False, False, True, True]
    assert "lm_head.weight" not in weights.servable_weights(model, torch.float32)
    publisher.close()
    assert not list(tmp_path.iterdir())


def test_weights_of_dead_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "SHARED_MEMORY", tmp_path)
    mine = tmp_path / f"{weights.PREFIX}{os.getpid()}-x"
    dead = tmp_path / f"{weights.PREFIX}999999999-x"
    mine.mkdir()
    dead.mkdir()
    weights.remove_stale_weights()
    assert mine.is_dir()
    assert not dead.exists()
