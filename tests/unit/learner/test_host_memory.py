"""What a learner on CPUs frees, it takes again without the kernel."""

import resource

import torch

from hgpo_rllib.bench.measure import new_process
from hgpo_rllib.learner.host_memory import keep_freed_memory


def faults_of_second_use() -> int:
    """Pages that the kernel gives out for 100 MB after 150 MB were freed."""
    keep_freed_memory()
    torch.ones(37_500_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(25_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_freed_memory_is_kept() -> None:
    """100 MB are 24,000 pages."""
    with new_process() as process:
        assert process.submit(faults_of_second_use).result() < 1000
