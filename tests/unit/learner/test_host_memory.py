"""A learner on CPUs reuses freed memory without the kernel, and oneDNN's caches are limited."""

import ctypes
import os
import resource
import subprocess
import sys

import pytest
import torch

from hgpo_rllib.bench.measure import new_process
from hgpo_rllib.learner.host_memory import CACHED_PRIMITIVES, CACHES, set_up_host_memory


def faults_of_second_use() -> int:
    """Return the page faults of allocating 100 MB after 150 MB were freed."""
    ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE, as a huge page would count as one
    set_up_host_memory()
    torch.ones(37_500_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(25_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_freed_memory_is_kept() -> None:
    """Allocating 100 MB (24,000 pages) again causes few page faults."""
    with new_process() as process:
        assert process.submit(faults_of_second_use).result() < 1000


PRODUCTS = """
import torch
from hgpo_rllib.learner.host_memory import set_up_host_memory
if {limited}:
    set_up_host_memory()
kernel = torch.ones(16, 16, 3, 3)
for _ in range(2):
    for size in range(8, 8 + {shapes}):
        torch.nn.functional.conv2d(torch.ones(2, 16, size, size), kernel)
"""


@pytest.mark.parametrize("limited", [False, True])
def test_few_primitives_are_cached(limited: bool) -> None:
    """With the limit, repeated convolutions of more shapes than the cache holds never hit it."""
    shapes = CACHED_PRIMITIVES + 4
    script = PRODUCTS.format(limited=limited, shapes=shapes)
    environment = os.environ | {"ONEDNN_VERBOSE": "profile_create"}
    for name in CACHES:  # a learner of another test may have set it
        environment.pop(name, None)
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    hits = [line for line in run.stdout.splitlines() if ":cache_hit" in line]
    assert sum(",convolution," in line for line in hits) == (0 if limited else shapes)
