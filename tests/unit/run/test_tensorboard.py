"""TensorBoard events are written synchronously, so a full disk raises in the caller."""

import resource
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from hgpo_rllib.run.directory import describe_full_disk
from hgpo_rllib.run.tensorboard import TensorBoard


def read_events(file: Path) -> Iterator[Event]:
    """Yield the events of a file; each is framed by its length and two checksums."""
    data = file.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield Event.FromString(data[12 : 12 + length])
        data = data[12 + length + 4 :]


def test_values_are_there_when_log_returns(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "tensorboard")
    board.log({"loss": 0.5, "episodes": 16}, step=3)
    (file,) = (tmp_path / "tensorboard").iterdir()
    _, event = read_events(file)
    assert event.step == 3
    assert {value.tag: value.simple_value for value in event.summary.value} == {
        "loss": 0.5,
        "episodes": 16,
    }


def fill(board: TensorBoard) -> None:
    """Write more than the file size limit of the test."""
    for step in range(1000):
        board.log({"loss": 0.5}, step)


def test_a_file_that_cannot_grow_raises(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk, on which `SummaryWriter` hangs."""
    board = TensorBoard(tmp_path / "tensorboard")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            fill(board)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert describe_full_disk(caught.value) == "File too large"
