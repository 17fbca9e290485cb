"""The peak memory of tensors on the CPU, counted as torch allocates and frees them."""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class PeakMemory(TorchDispatchMode):
    """Count the bytes of tensors that are created in the block; `peak` is the highest total."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Callable, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Register arguments, which existed before, with size 0, and results with their size."""
        tree_map_only(Tensor, lambda tensor: self._note(tensor, 0), (args, kwargs))
        result = function(*args, **(kwargs or {}))
        tree_map_only(Tensor, lambda t: self._note(t, t.untyped_storage().nbytes()), result)
        return result

    def _note(self, tensor: Tensor, size: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = size
            weakref.finalize(storage, self._free, key)
            self.now += size
            self.peak = max(self.peak, self.now)

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key)
