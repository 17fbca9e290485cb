"""The library of Fast Downward, which TextWorld copies to a temporary file for each engine."""

import functools
import os
import struct
from pathlib import Path

from fast_downward import interface

PT_LOAD = 1  # type of the segments of an ELF file that are loaded, from elf.h


@functools.cache
def drop_debug_information() -> None:
    """Let TextWorld copy only the part of the library that the loader maps, 1 of 34 MB.

    An engine keeps its copy, although it is deleted, so 512 engines would take 17 GB of the
    temporary directory. The part is kept in memory: a killed process would leave a file.
    """
    library = Path(interface.DOWNWARD_LIB_PATH).read_bytes()
    # Offset, size and number of the program headers of a 64-bit ELF file.
    (first,) = struct.unpack_from("<Q", library, 32)
    size, count = struct.unpack_from("<HH", library, 54)
    headers = [struct.unpack_from("<IIQQQQ", library, first + size * i) for i in range(count)]
    end = max(offset + length for kind, _, offset, _, _, length in headers if kind == PT_LOAD)
    with open(os.memfd_create("libdownward"), "wb", closefd=False) as file:
        file.write(library[:end])
        interface.DOWNWARD_LIB_PATH = f"/proc/self/fd/{file.fileno()}"
