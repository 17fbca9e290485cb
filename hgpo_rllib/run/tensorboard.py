"""Write metrics as TensorBoard events."""

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary


class TensorBoard:
    """Write scalars to an event file, and raise OSError if that fails.

    tensorboardX's `SummaryWriter` writes in a thread that exits without an error when the disk is
    full. Its queue then blocks the caller forever.
    """

    def __init__(self, folder: Path):
        """Create a new event file in `folder`."""
        folder.mkdir(exist_ok=True)
        self._file = EventsWriter(str(folder / "events"))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write the values of one step, by name, and flush them to the file."""
        summary = Summary(
            value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        )
        self._write(Event(step=step, summary=summary))

    def purge(self, step: int) -> None:
        """Make TensorBoard leave out what earlier event files have from `step` on."""
        self._write(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._file.write_event(event)
        self._file.flush()
