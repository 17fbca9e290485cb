"""Import large packages faster."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def large_imports() -> Iterator[None]:
    """Pause the garbage collector while the block imports Ray, torch or vLLM.

    Imports create millions of objects that stay. The collector would look through them again and
    again, which takes a sixth of the time of the import.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
