"""The checks of `hgpo doctor` before it starts any process."""

import json
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from typer.testing import CliRunner

from hgpo_rllib.cli.doctor import SMALL
from hgpo_rllib.cli.main import app
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.doctor import GIB, machine_checks, short_run
from hgpo_rllib.run.inputs import check_files
from hgpo_rllib.run.model_size import find_size
from tests.paths import ROOT

QWEN = ROOT / "tuned_examples" / "alfworld_qwen1.5b_hgpo.yaml"


def problems(config: RunConfig) -> dict[str, str]:
    checks = machine_checks(config, find_size(config))
    return {check.name: check.problem for check in checks if check.problem}


def qwen(*overrides: str) -> RunConfig:
    """Return settings of a run on GPUs whose data, which take long to check, are missing."""
    return load_config(QWEN, ["env.data=nowhere", *overrides])


def have_gpus(monkeypatch: pytest.MonkeyPatch, count: int, gib: float, capability: int = 9) -> None:
    card: Any = SimpleNamespace(name="Test", total_memory=gib * GIB, major=capability)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)


@pytest.mark.parametrize(
    ("count", "gib", "capability", "problem"),
    [
        (2, 80, 9, None),
        (0, 80, 9, "CUDA finds no GPU"),
        (1, 80, 9, "the run needs 2"),
        (2, 24, 9, "the processes of one GPU need 48 GiB"),
        (2, 80, 7, "learner.compute_dtype=float32"),
    ],
)
def test_gpus(
    monkeypatch: pytest.MonkeyPatch, count: int, gib: float, capability: int, problem: str | None
) -> None:
    have_gpus(monkeypatch, count, gib, capability)
    found = problems(qwen())
    assert "software" not in found
    assert problem is None if "GPUs" not in found else str(problem) in found["GPUs"]


def test_gpus_without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs without bfloat16 are accepted if both model and learner use float32."""
    have_gpus(monkeypatch, 2, 80, capability=7)
    learner = ["learner.compute_dtype=float32"]
    assert "bfloat16" in problems(qwen(*learner))["GPUs"]
    assert "GPUs" not in problems(qwen(*learner, "model.dtype=float32"))


def test_learner_and_engine_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner and an engine that fit one by one are reported if they exceed a shared GPU."""
    have_gpus(monkeypatch, 1, 80)
    shared = ["cluster.learner_gpus=0.5", "policy_server.replica_gpus=0.5"]
    found = problems(qwen(*shared))
    assert "the processes of one GPU need 334 GiB" in found["GPUs"]
    fits = "policy_server.memory_utilization=0.3"
    assert "GPUs" not in problems(qwen(*shared, fits))


def test_the_nodes_of_a_cluster_are_not_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    have_gpus(monkeypatch, 0, 0)
    config = qwen()
    checks = machine_checks(config, find_size(config))
    assert [check.name for check in checks] == [
        "software",
        "cluster",
        "model, data, ports",
        "disk (runs)",
    ]


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of 1.5 billion parameters is reported to exceed 8 GiB of host memory."""
    free: Any = SimpleNamespace(available=8 * GIB, total=8 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    on_cpu = ["cluster.num_learners=0", "cluster.learner_gpus=0", "policy_server.replica_gpus=0"]
    found = problems(qwen(*on_cpu))
    assert "too little" in found["host memory"]


def test_memory_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of four replicas counts towards the needed memory."""
    needed = []
    for replicas in (1, 4):
        config = load_config(QWEN.with_name("alfworld_pocket.yaml"), [])
        server = config.policy_server.model_copy(update={"num_replicas": replicas})
        config = config.model_copy(update={"policy_server": server})
        (check,) = (c for c in machine_checks(config, find_size(config)) if c.name == "host memory")
        needed.append(float(check.found.partition("about ")[2].split()[0]))
    cache = config.policy_server.cpu_kv_cache_gib
    assert needed[1] - needed[0] == pytest.approx(3 * cache, rel=0.1)


@pytest.mark.parametrize("name", ["alfworld_pocket", "alfworld_pocket_strata", "mixture_pocket"])
def test_the_settings_of_the_short_run_are_valid(name: str) -> None:
    """Also for strategies, which need two members each, and for limits of a mixture's parts."""
    config = short_run(load_config(QWEN.with_name(f"{name}.yaml"), []))
    assert config.env_config["max_steps"] == 3
    assert config.group_size == (4 if name.endswith("strata") else 2)


@pytest.mark.parametrize("name", ["alfworld_pocket", "webshop_pocket", "textcraft_pocket"])
def test_the_data_of_the_short_run_have_all_splits(name: str) -> None:
    """The doctor's smaller data sizes leave tasks for each split."""
    check_files(load_config(QWEN.with_name(f"{name}.yaml"), list(SMALL)))


def test_an_error_of_the_short_run_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any error of the short run becomes a one-line problem with exit code 1."""

    def fail(*_: Any) -> None:
        raise ValueError("no such\nlayer")

    monkeypatch.setattr("hgpo_rllib.doctor.machine_checks", lambda *_: iter(()))
    monkeypatch.setattr("hgpo_rllib.doctor.prepare_inputs", fail)
    result = CliRunner().invoke(app, ["doctor", str(QWEN), "--json"])
    assert result.exit_code == 1
    (found,) = json.loads(result.stdout)["problems"]
    assert found == {"check": "short run", "problem": "ValueError: no such layer"}


def test_problems_are_named_with_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems of a GPU run on a machine without one are printed, and no short run is started."""
    have_gpus(monkeypatch, 0, 0)
    monkeypatch.setattr(torch.version, "cuda", None)
    result = CliRunner().invoke(app, ["doctor", str(QWEN), "env.data=nowhere", "--json"])
    assert result.exit_code == 1
    for text in ("HGPO_BACKEND=gpu make setup", "CUDA finds no GPU", "nowhere", "not started"):
        assert text in result.stdout
