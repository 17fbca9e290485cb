"""Processes end with their parents."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest

from hgpo_rllib.policy_server.parent_death import die_with_parent
from tests.paths import ROOT
from tests.processes import assert_gone

SLEEP = "print(os.getpid(), flush=True); time.sleep(60)"
IN_PROCESS = f"import os, time; from {die_with_parent.__module__} import *; die_with_parent(); "
# Each is a parent whose child prints its id and sleeps.
PARENTS = {
    "in the process": f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {IN_PROCESS + SLEEP!r}])
""",
    "as preexec_fn": f"""
import os, subprocess, sys
from functools import partial
from {die_with_parent.__module__} import die_with_parent
command = [sys.executable, "-c", "import os, time; " + {SLEEP!r}]
subprocess.run(command, preexec_fn=partial(die_with_parent, os.getpid()))
""",
    "in a process of multiprocessing": """
import multiprocessing
from tests.unit.policy_server.test_parent_death import child_of_multiprocessing
process = multiprocessing.get_context("spawn").Process(target=child_of_multiprocessing)
process.start()
process.join()
""",
}


def child_of_multiprocessing() -> None:
    """Set the parent-death signal, print the process id and sleep."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    die_with_parent(parent.pid)
    print(os.getpid(), flush=True)
    time.sleep(60)


@pytest.mark.parametrize("parent", PARENTS)
def test_a_child_ends_when_its_parent_is_killed(parent: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENTS[parent]], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        assert child.ppid() == process.pid
        process.kill()
    assert_gone(child)


def test_a_parent_that_has_ended_already() -> None:
    """A process whose parent has already ended is killed at once."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(subprocess.CalledProcessError) as caught:
        subprocess.run(["sleep", "60"], preexec_fn=partial(die_with_parent, ended.pid), check=True)
    assert caught.value.returncode == -signal.SIGKILL


def test_a_child_whose_parent_goes_on_is_left_alone() -> None:
    done = subprocess.run(["sleep", "0.5"], preexec_fn=partial(die_with_parent, os.getpid()))
    assert done.returncode == 0
