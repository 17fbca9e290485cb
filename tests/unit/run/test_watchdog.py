"""The end of a process on which a command depends is reported at once."""

import subprocess
import threading

from hgpo_rllib.run.cluster import on_exit_of


def test_the_end_of_a_process_is_reported_by_name() -> None:
    first, second = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    ended, names = threading.Event(), []

    def call(name: str) -> None:
        names.append(name)
        ended.set()

    try:
        with on_exit_of({first.pid: "first", second.pid: "second"}, call):
            assert not ended.wait(0.2)
            second.kill()
            assert ended.wait(10)
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
    assert names == ["second"]


def test_nothing_is_reported_after_the_block() -> None:
    process = subprocess.Popen(["sleep", "600"])
    names: list[str] = []
    try:
        with on_exit_of({process.pid: "process"}, names.append):
            pass
        assert "ray-processes" not in [thread.name for thread in threading.enumerate()]
    finally:
        process.kill()
        process.wait()
    assert names == []
