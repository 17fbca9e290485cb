"""Which GPUs the processes of a run see, on GPUs that are not there."""

import json
import subprocess
import sys
from typing import Any

import pytest

from hgpo_rllib.config import RunConfig
from tests.paths import ROOT

pytestmark = pytest.mark.integration
Note = dict[str, str]
FEW = ("1.5B", "one GPU colocated")
MORE = ("7B", "7B colocated", "one GPU", "sweep", "two nodes")


def more(*values: str | int) -> Any:
    """Parameters of a case that takes minutes, with the others of `MORE`."""
    return pytest.param(MORE, *values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def notes(
    request: pytest.FixtureRequest, run_config: RunConfig, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Note]]:
    """What the processes of each case noted, in order."""
    file = tmp_path_factory.mktemp("gpus") / "notes.jsonl"
    program = [sys.executable, "-m", "tests.integration.fake_gpus", str(file)]
    files = [str(run_config.env.data), str(run_config.model.model_path)]
    words = [*program, *files, *request.param]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    cases: dict[str, list[Note]] = {}
    for line in file.read_text().splitlines():
        note = json.loads(line)
        if note["event"] == "case":
            cases[note["name"]] = []
        else:
            cases[list(cases)[-1]].append(note)
    return cases


def gpus(notes: list[Note], process: str) -> list[str]:
    """The GPUs that processes of a kind see, as ``node:number``, sorted."""
    seen = [note for note in notes if note["event"] == process]
    return sorted(f"{note['node'][:4]}:{gpu}" for note in seen for gpu in note["gpus"].split(","))


@pytest.mark.parametrize(
    ("notes", "case", "learners", "replicas"),
    [(FEW, "1.5B", 1, 1), more("7B", 3, 1), more("sweep", 2, 2), more("two nodes", 3, 1)],
    indirect=["notes"],
)
def test_every_process_has_gpus_of_its_own(
    notes: dict[str, list[Note]], case: str, learners: int, replicas: int
) -> None:
    learner_gpus, replica_gpus = gpus(notes[case], "learner"), gpus(notes[case], "replica")
    assert (len(learner_gpus), len(replica_gpus)) == (learners, replicas)
    assert len({*learner_gpus, *replica_gpus}) == learners + replicas


@pytest.mark.parametrize(
    ("notes", "case", "count"),
    [(FEW, "one GPU colocated", 1), more("one GPU", 1), more("7B colocated", 4)],
    indirect=["notes"],
)
def test_learners_share_their_gpus_with_replicas(
    notes: dict[str, list[Note]], case: str, count: int
) -> None:
    """Each GPU has one of both."""
    learners, replicas = gpus(notes[case], "learner"), gpus(notes[case], "replica")
    assert len(set(learners)) == len(learners) == count
    assert learners == replicas


@pytest.mark.parametrize("notes", [FEW], indirect=True)
def test_colocated_engines_sleep_during_the_update(notes: dict[str, list[Note]]) -> None:
    """They wake once the new weights are published, and load them."""
    events = [note["event"] for note in notes["one GPU colocated"]]
    first = events.index("sleep")
    assert events[first:] == ["sleep", "update", "publish", "wake", "load", "end"]
