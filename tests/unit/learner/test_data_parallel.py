"""How several learners share a mini-batch, and the errors when one of them is lost."""

from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest
import ray
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError
from ray.rllib.utils import checkpoints
from ray.tune.utils.file_transfer import sync_dir_between_nodes

from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.learner import gradients
from hgpo_rllib.learner.data_parallel import (
    check_healthy,
    learners_on_node,
    share,
    stopped_by_learners,
)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40), st.integers(1, 5))
def test_shares(lengths: list[int], count: int) -> None:
    """Shares cover all rows, and their token counts differ by at most the longest row."""
    rows = np.random.default_rng(0).permutation(len(lengths))
    array = np.array(lengths)
    shares = [share(rows, array, of, count) for of in range(count)]
    assert sorted(np.concatenate(shares)) == sorted(rows)
    tokens = [array[part].sum() for part in shares]
    assert max(tokens) - min(tokens) <= max(lengths)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RayActorError(), "a learner process died"),
        (
            RayTaskError("update", "… Connection closed by peer [127.0.0.1]:1", RuntimeError()),
            "a learner process died",
        ),
        (OutOfMemoryError("killed"), "a learner process was killed: its node is out of memory"),
    ],
)
def test_a_lost_learner_is_one_line(error: Exception, message: str) -> None:
    """Errors of a lost learner, or of one that waited for it, become a one-line error."""
    with (
        pytest.raises(RunStoppedError, match=message),
        stopped_by_learners(),
    ):
        raise error


def test_a_learner_that_stops_the_run_says_why_in_one_line() -> None:
    """Only the message of the learner's error is raised, without Ray's traceback."""
    cause = RunStoppedError("bad mini-batch 1 of 1 in update 1")
    error = RayTaskError("update", f"Traceback (most recent call last):\n{cause}", cause)
    with pytest.raises(RunStoppedError) as stopped, stopped_by_learners():
        raise error.as_instanceof_cause()
    assert str(stopped.value) == str(cause)


class Group:
    """A group of two learner processes, some of which RLlib considers healthy."""

    is_remote = True

    def __init__(self, healthy: int) -> None:
        """Set the number of healthy processes."""
        self._worker_manager = SimpleNamespace(num_healthy_actors=lambda: healthy)

    def __len__(self) -> int:
        return 2


def test_a_learner_that_fails_while_it_saves_stops_the_run() -> None:
    """RLlib ignores errors in saving, so an unhealthy learner must stop the run."""
    check_healthy(Group(2))  # type: ignore[arg-type]
    with pytest.raises(RunStoppedError, match="failed while it saved or loaded its state"):
        check_healthy(Group(1))  # type: ignore[arg-type]


def test_the_state_of_a_learner_on_another_node_can_be_large() -> None:
    """RLlib's limit of 1 GiB on states from other nodes is removed."""
    names = checkpoints.Checkpointable.save_to_path.__globals__
    assert names["sync_dir_between_nodes"].keywords == {"max_size_bytes": None}
    assert "max_size_bytes" in signature(sync_dir_between_nodes).parameters


@pytest.mark.parametrize(
    ("learners", "gpus", "here"),
    [(1, {}, 1), (32, {"GPU": 8.0}, 8), (4, {"GPU": 8.0}, 4), (2, {}, 1)],
)
def test_learners_of_a_node(
    learners: int, gpus: dict[str, float], here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several learners have a GPU each, so a node has at most as many as GPUs."""
    nodes = [{"NodeID": "a", "Resources": {"GPU": 2.0}}, {"NodeID": "b", "Resources": gpus}]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    context = SimpleNamespace(get_node_id=lambda: "b")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    assert learners_on_node(learners) == here


def test_an_error_of_a_learner_keeps_its_traceback() -> None:
    error = RayTaskError("update", "ValueError: a defect", ValueError("a defect"))
    with pytest.raises(RayTaskError), stopped_by_learners():
        raise error


def test_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets are filled from the last parameter; a parameter above the size has its own."""
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 4 * 10)
    parameters = [torch.nn.Parameter(torch.empty(size)) for size in (4, 12, 1, 3, 3, 4)]
    cut = [[len(p) for p in bucket] for bucket in gradients.buckets(parameters)]
    assert cut == [[4, 3, 3], [1], [12], [4]]
