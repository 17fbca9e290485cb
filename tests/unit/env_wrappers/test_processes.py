"""The tests' own search for processes finds those that rename themselves."""

import os
import subprocess
import sys

import pytest

from tests.processes import Processes

# Starts a grandchild and names itself, as vLLM's EngineCore does.
RENAMED = """
import subprocess, sys, time
from setproctitle import setproctitle
setproctitle("VLLM::EngineCore " + "x" * 5000)
subprocess.Popen(["sleep", "60"], start_new_session=True)
print("ready", flush=True)
time.sleep(60)
"""


def start(processes: Processes, **environment: str) -> "subprocess.Popen[str]":
    """Start a process that renames itself, and wait until it has."""
    process = subprocess.Popen(
        [sys.executable, "-c", RENAMED],
        env=os.environ | processes.environment | environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(processes: Processes) -> None:
    for process in processes.alive():
        process.kill()
    processes.assert_none(10)


def test_a_process_that_renamed_itself_is_found() -> None:
    """A renamed process and its child in another session are found; others' are not."""
    processes, others = Processes(), Processes()
    with start(processes) as process:
        engine = processes.find("VLLM::EngineCore")
        assert engine.pid == process.pid
        assert len(processes.alive()) == 2
        assert others.alive() == []
        process.kill()
    assert processes.command_lines() == ["sleep 60"]
    with pytest.raises(AssertionError, match="sleep 60"):
        processes.assert_none(0.1)
    end(processes)


def test_one_that_overwrote_its_environment_is_remembered() -> None:
    """A child that was found through its parent is remembered after the parent has ended."""
    processes = Processes()
    script = (
        "import os, subprocess, sys, time\n"
        "environment = {k: v for k, v in os.environ.items() if k != 'HGPO_TEST_MARK'}\n"
        "subprocess.Popen(['sleep', '60'], env=environment)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | processes.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert len(processes.alive()) == 2
        parent.kill()
    assert processes.command_lines() == ["sleep 60"]
    end(processes)


def test_zombies_are_not_alive() -> None:
    processes = Processes()
    with subprocess.Popen(["sleep", "60"], env=processes.environment) as process:
        assert len(processes.alive()) == 1
        process.kill()  # a zombie until `wait`, at the end of the block
        processes.assert_none(10)
