"""Which GPUs the processes of a run see, on GPUs that are not there."""

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
Note = dict[str, str]
Notes = Callable[[str], list[Note]]
FEW = ("1.5B", "one GPU colocated")
MORE = ("7B", "7B colocated", "one GPU", "sweep", "two nodes")


def more(*values: str | int) -> Any:
    """Parameters of a case that takes minutes, with the others of `MORE`."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def notes(run_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Notes:
    """Return what the processes of a case noted, in order. Cases run once for all tests.

    pytest would set up a fixture with `FEW` or `MORE` as its parameter again for each test.
    """

    @functools.cache
    def run(cases: tuple[str, ...]) -> dict[str, list[Note]]:
        file = tmp_path_factory.mktemp("gpus") / "notes.jsonl"
        program = [sys.executable, "-m", "tests.integration.fake_gpus", str(file)]
        files = [str(run_config.env.data), str(run_config.model.model_path)]
        done = subprocess.run(
            [*program, *files, *cases], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, list[Note]] = {}
        for line in file.read_text().splitlines():
            note = json.loads(line)
            if note["event"] == "case":
                found[note["name"]] = []
            else:
                found[list(found)[-1]].append(note)
        return found

    return lambda case: run(FEW if case in FEW else MORE)[case]


def gpus(notes: list[Note], process: str) -> list[str]:
    """The GPUs that processes of a kind see, as ``node:number``, sorted."""
    seen = [note for note in notes if note["event"] == process]
    return sorted(f"{note['node'][:4]}:{gpu}" for note in seen for gpu in note["gpus"].split(","))


@pytest.mark.parametrize(
    ("case", "learners", "replicas"),
    [("1.5B", 1, 1), more("7B", 3, 1), more("sweep", 2, 2), more("two nodes", 3, 1)],
)
def test_every_process_has_gpus_of_its_own(
    notes: Notes, case: str, learners: int, replicas: int
) -> None:
    learner_gpus, replica_gpus = gpus(notes(case), "learner"), gpus(notes(case), "replica")
    assert (len(learner_gpus), len(replica_gpus)) == (learners, replicas)
    assert len({*learner_gpus, *replica_gpus}) == learners + replicas


@pytest.mark.parametrize(
    ("case", "count"),
    [("one GPU colocated", 1), more("one GPU", 1), more("7B colocated", 4)],
)
def test_learners_share_their_gpus_with_replicas(notes: Notes, case: str, count: int) -> None:
    """Each GPU has one of both."""
    learners, replicas = gpus(notes(case), "learner"), gpus(notes(case), "replica")
    assert len(set(learners)) == len(learners) == count
    assert learners == replicas


def test_colocated_engines_sleep_during_the_update(notes: Notes) -> None:
    """They wake once the new weights are published, and load them."""
    events = [note["event"] for note in notes("one GPU colocated")]
    first = events.index("sleep")
    assert events[first:] == ["sleep", "update", "publish", "wake", "load", "end"]
