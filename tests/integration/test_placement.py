"""Which GPUs the processes of a run see, on simulated GPUs."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hgpo_rllib.config import RunConfig
from tests.paths import ROOT

pytestmark = pytest.mark.integration
Event = dict[str, str]
Events = Callable[[str], list[Event]]
FEW = ("1.5B", "one GPU colocated")
MORE = ("7B", "7B colocated", "one GPU", "sweep", "two nodes")


def more(*values: str | int) -> Any:
    """Return the parameters of a slow case, which runs together with all of `MORE`."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def events(run_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Events:
    """Return a function that returns a case's events in order; cases run once for all tests.

    pytest would set up a fixture with `FEW` or `MORE` as its parameter again for each test.
    """

    @functools.cache
    def run(cases: tuple[str, ...]) -> dict[str, list[Event]]:
        file = tmp_path_factory.mktemp("gpus") / "events.jsonl"
        program = [sys.executable, "-m", "tests.integration.fake_gpus", str(file)]
        files = [str(run_config.env.data), str(run_config.model.model_path)]
        done = subprocess.run(
            [*program, *files, *cases], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, list[Event]] = {}
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "case":
                found[event["name"]] = []
            else:
                found[list(found)[-1]].append(event)
        return found

    return lambda case: run(FEW if case in FEW else MORE)[case]


def gpus(events: list[Event], process: str) -> list[str]:
    """Return the sorted GPUs (``node:number``) that processes of a kind see."""
    seen = [event for event in events if event["event"] == process]
    return sorted(
        f"{event['node'][:4]}:{gpu}" for event in seen for gpu in event["gpus"].split(",")
    )


@pytest.mark.parametrize(
    ("case", "learners", "replicas"),
    [("1.5B", 1, 1), more("7B", 3, 1), more("sweep", 2, 2), more("two nodes", 3, 1)],
)
def test_every_process_has_gpus_of_its_own(
    events: Events, case: str, learners: int, replicas: int
) -> None:
    learner_gpus, replica_gpus = gpus(events(case), "learner"), gpus(events(case), "replica")
    assert (len(learner_gpus), len(replica_gpus)) == (learners, replicas)
    assert len({*learner_gpus, *replica_gpus}) == learners + replicas


@pytest.mark.parametrize(
    ("case", "count"),
    [("one GPU colocated", 1), more("one GPU", 1), more("7B colocated", 4)],
)
def test_learners_share_their_gpus_with_replicas(events: Events, case: str, count: int) -> None:
    """Each GPU has one learner and one replica."""
    learners, replicas = gpus(events(case), "learner"), gpus(events(case), "replica")
    assert len(set(learners)) == len(learners) == count
    assert learners == replicas


def test_colocated_engines_sleep_while_learners_need_gpu_memory(events: Events) -> None:
    """They sleep during the update and a checkpoint, and wake to load published weights."""
    names = [event["event"] for event in events("one GPU colocated")]
    first = names.index("sleep")
    update = ["sleep", "update", "publish", "wake", "load"]
    assert names[first:] == [*update, "sleep", "save", "end"]
