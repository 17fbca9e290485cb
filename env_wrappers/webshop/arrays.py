"""Write arrays to disk, allocating the space first so that a full disk raises an OSError.

Otherwise, writing to a mapped page on a full disk kills the process with SIGBUS, and ``np.save``
raises an error that does not name the cause.
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

_HEADER = 128  # bytes of a .npy header for one or two dimensions


def save_array(path: Path, array: np.ndarray) -> None:
    """Write an array as ``np.save`` does.

    Raises:
        OSError: the array cannot be written, for instance because the disk is full.
    """
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _HEADER + array.nbytes)
        np.save(file, array)
        file.truncate()


def new_array(path: Path, dtype: DTypeLike, size: int) -> np.memmap:
    """Return a new array on disk, mapped into memory.

    Raises:
        OSError: the file cannot be written, for instance because the disk is full.
    """
    mapped = np.lib.format.open_memmap(path, "w+", dtype, (size,))
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, mapped.offset + mapped.nbytes)
    return mapped
