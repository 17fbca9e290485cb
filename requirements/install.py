"""Create .venv and install the locked environment into it; called by `make setup`.

Standard library only, so that any Python 3.8+ can start it; the environment itself is made with
Python 3.11 or 3.12. A setup that was interrupted continues with the next call, and one that is
complete is recognized by its stamp and left alone.

Environment variables: HGPO_BACKEND=cpu|gpu (default: gpu where nvidia-smi is found),
HGPO_PYTHON=path of the interpreter to use; pip's own PIP_* variables apply as usual.
Exit codes: 0 ready, 1 a step failed, 2 something is missing on this machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "install.log"
SUPPORTED = ("3.11", "3.12")
NEED_GB = {"cpu": 6, "gpu": 20}  # measured on a CPU: 3.6 GB; the GPU figure is an estimate
COMPILERS = ("gcc", "g++", "make")
SHELL_CHARACTERS = frozenset(" \t\n'\"\\$&;|<>()`")
FROM_SOURCE = ("jericho", "fast-downward-textworld")
PROBE = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
HEADERS = """
import os, sysconfig
print(os.path.isfile(os.path.join(sysconfig.get_paths("posix_prefix")["include"], "Python.h")))
"""
CUDA_PACKAGES = ("torchvision", "torchaudio", "torchcodec", "triton")
CHECK = """
import importlib.util, alfworld, ray, torch, vllm
from vllm.platforms import current_platform
found = [name for name in {unwanted!r} if importlib.util.find_spec(name)]
assert not found, f'{{found}} must not be installed here: run make clean, then make setup'
# To pip, an installed CPU build of torch is the version that the lock file for GPUs pins.
assert (torch.version.cuda is None) == {cpu}, 'wrong torch build: run make clean, then make setup'
print('vllm', vllm.__version__, 'ray', ray.__version__, 'torch', torch.__version__)
print('platform', current_platform.device_type)
"""


class SetupError(Exception):
    """A failure with a one-line message for the user and an exit code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def choose_backend() -> str:
    """Return the wanted backend: HGPO_BACKEND, or gpu where an NVIDIA driver is installed."""
    backend = os.environ.get("HGPO_BACKEND") or ("gpu" if shutil.which("nvidia-smi") else "cpu")
    if backend not in NEED_GB:
        raise SetupError(f"HGPO_BACKEND={backend} is not known; use cpu or gpu")
    return backend


def python_version(command: str) -> str | None:
    """Return 'major.minor' of an interpreter that can make virtual environments, else None."""
    try:
        result = subprocess.run([command, "-c", PROBE], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def find_python() -> str:
    """Return the first suitable interpreter among HGPO_PYTHON, this one and those on PATH."""
    chosen = os.environ.get("HGPO_PYTHON")
    commands = [chosen] if chosen else [sys.executable, "python3.11", "python3.12", "python3"]
    seen = []
    for command in commands:
        version = python_version(command)
        if version in SUPPORTED:
            return command
        seen.append(f"{Path(command).name} ({version or 'unusable'})")
    raise SetupError(
        f"Python 3.11 or 3.12 with the venv module is needed (3.13 is not supported); tried "
        f"{', '.join(seen)}: install python3.11 and python3.11-venv, or set HGPO_PYTHON"
    )


def check_headers(python: str) -> None:
    """Demand Python's headers: on GPUs, Triton compiles with them when it first runs a kernel."""
    result = subprocess.run([python, "-c", HEADERS], capture_output=True, text=True)
    if result.stdout.strip() != "True":
        raise SetupError(
            f"{python} has no headers (Python.h), which Triton needs on GPUs: install "
            "python3.11-dev (or python3.12-dev)"
        )


def check_machine(backend: str) -> None:
    """Demand what building jericho and fast-downward-textworld takes, and space for a new .venv."""
    if SHELL_CHARACTERS.intersection(str(ROOT)):  # Ray passes Python's path to a shell, unquoted
        raise SetupError(
            f"{ROOT}: Ray cannot start Python from a path with spaces, quotes, parentheses or "
            "other special characters of a shell: move the repository to another folder"
        )
    missing = [tool for tool in COMPILERS if shutil.which(tool) is None]
    if missing:
        raise SetupError(
            f"{', '.join(missing)} not found: ALFWorld's engine is compiled during setup; "
            "install a C/C++ tool chain (Debian, Ubuntu: apt-get install gcc g++ make)"
        )
    free = shutil.disk_usage(ROOT).free / 1e9
    if not VENV.exists() and free < NEED_GB[backend]:
        raise SetupError(
            f"{free:.1f} GB free on disk, about {NEED_GB[backend]} GB needed for .venv: make room"
        )


def lock_file(backend: str) -> Path:
    """Return the lock file of a backend."""
    return ROOT / "requirements" / f"lock-{backend}.txt"


def stamp_path(backend: str) -> Path:
    """Return the stamp's path, which changes with the lock and with pyproject.toml."""
    content = lock_file(backend).read_bytes() + (ROOT / "pyproject.toml").read_bytes()
    return VENV / f".installed-{hashlib.sha256(content).hexdigest()[:12]}"


def is_complete(backend: str) -> bool:
    """Tell whether setup is done for this lock and this place.

    It is not in a moved checkout, or if the interpreter that .venv links to was removed.
    """
    stamp = stamp_path(backend)
    return PYTHON.exists() and stamp.is_file() and stamp.read_text() == str(ROOT)


def run_step(title: str, *command: str) -> None:
    """Run one step, its output in the log; say how long it took, or show the log's tail."""
    begin = time.monotonic()
    print(f"setup: {title} ...", flush=True)
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH")}
    path = f"{PYTHON.parent}{os.pathsep}{variables.get('PATH', os.defpath)}"  # for source builds
    variables.update(VIRTUAL_ENV=str(VENV), VLLM_NO_USAGE_STATS="1", PATH=path)
    offset = LOG.stat().st_size if LOG.exists() else 0
    with LOG.open("a") as log:
        result = subprocess.run(
            command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    if result.returncode == 0:
        print(f"setup: {title}: done in {time.monotonic() - begin:.0f} s", flush=True)
        return
    output = LOG.read_bytes()[offset:].decode(errors="replace")
    if "No matching distribution found for" in output and "connection broken by" in output:
        raise SetupError(
            "a package index cannot be reached: check the network, or set PIP_INDEX_URL and "
            "PIP_EXTRA_INDEX_URL to mirrors",
            code=1,
        )
    if "No matching distribution found for torch==" in output and "+cpu" in output:
        raise SetupError(
            "the CPU build of torch is not on the configured package indexes: set "
            "PIP_EXTRA_INDEX_URL to PyTorch's CPU index (its 'Get started' page gives the address)"
        )
    print("\n".join(output.splitlines()[-20:]), file=sys.stderr)
    raise SetupError(f"{title} failed; full log in {LOG.relative_to(ROOT)}", code=1)


def create_venv() -> None:
    """Make .venv unless a working one of a supported version is there."""
    if python_version(str(PYTHON)) in SUPPORTED:
        return
    command = (find_python(), "-m", "venv", str(VENV))
    for old in ("bin", "lib", "pyvenv.cfg"):
        path = VENV / old
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    run_step("create .venv", *command)


def drop_partial_installs() -> None:
    """Make pip forget packages whose installation was cut short, so that it installs them again.

    pip completes RECORD, with its own INSTALLER entry, as the last file of a package.
    """
    for info in VENV.glob("lib/python*/site-packages/*.dist-info"):
        record = info / "RECORD"
        if not record.is_file() or "INSTALLER" not in record.read_text():
            shutil.rmtree(info)


def install_packages(backend: str) -> None:
    """Install torch, the rest of the lock, the packages built from source, and the project."""
    lines = lock_file(backend).read_text().splitlines()
    pins = {line.split("==")[0]: line for line in lines if "==" in line and line[0] != "#"}
    pip, options = (str(PYTHON), "-m", "pip"), ("--no-deps", "--no-input", "-q")
    install = (*pip, "install", *options)
    run_step(f"install torch, {backend} build", *install, pins.pop("torch"))
    engine = [pins.pop(name) for name in FROM_SOURCE]
    with TemporaryDirectory() as wheels:
        build = (*pip, "wheel", *options, "--wheel-dir", wheels, *engine)
        with ThreadPoolExecutor(1) as other:  # compile while pip downloads and unpacks the rest
            title = "compile the ALFWorld engine (first time: minutes)"
            compiling = other.submit(run_step, title, *build)
            run_step(f"install {len(pins)} locked packages", *install, *pins.values())
            compiling.result()
        run_step("install the ALFWorld engine", *install, *map(str, Path(wheels).glob("*.whl")))
    run_step("install this project", *install, "--no-build-isolation", "-e", str(ROOT))
    cpu = backend == "cpu"
    code = CHECK.format(unwanted=CUDA_PACKAGES if cpu else (), cpu=cpu)
    run_step("check the environment", str(PYTHON), "-c", code)


def set_up(backend: str) -> None:
    """Do all steps, one process at a time, and leave the stamp."""
    check_machine(backend)
    if not VENV.exists():
        python = find_python()
        if backend == "gpu":
            check_headers(python)
        VENV.mkdir(exist_ok=True)  # another setup may have made it meanwhile
    with (VENV / ".lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if is_complete(backend):
            return
        begin = time.monotonic()
        for old in VENV.glob(".installed-*"):
            old.unlink()
        create_venv()
        drop_partial_installs()
        install_packages(backend)
        stamp_path(backend).write_text(str(ROOT))
        print(f"setup: ready for {backend} in {time.monotonic() - begin:.0f} s", flush=True)


def main() -> int:
    """Bring .venv up to date; report a failure in one line."""
    try:
        backend = choose_backend()
        if not is_complete(backend):
            set_up(backend)
    except SetupError as error:
        print(f"setup: error: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("setup: interrupted; the next call continues", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"setup: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
