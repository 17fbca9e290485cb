"""Writing arrays to disk: the space is allocated first, so that a full disk is an OSError.

Without, a write to a mapped page that the disk has no room for ends the process with SIGBUS, and
``np.save`` raises an error that does not name the cause.
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

_HEADER = 128  # bytes of a .npy file before the array of one or two dimensions


def save_array(path: Path, array: np.ndarray) -> None:
    """Write an array as ``np.save`` does.

    Raises:
        OSError: it cannot be written, for instance because the disk is full.
    """
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _HEADER + array.nbytes)
        np.save(file, array)
        file.truncate()


def new_array(path: Path, dtype: DTypeLike, size: int) -> np.memmap:
    """Return a new array on disk, mapped into memory.

    Raises:
        OSError: it cannot be written, for instance because the disk is full.
    """
    mapped = np.lib.format.open_memmap(path, "w+", dtype, (size,))
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, mapped.offset + mapped.nbytes)
    return mapped
