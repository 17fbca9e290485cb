"""Calls to several learners in separate processes."""

import logging
import os
import time
from collections.abc import Iterator

import pytest
from gymnasium import spaces
from ray.exceptions import RayActorError
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup

from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.config import RunConfig
from hgpo_rllib.learner import learner as learner_module
from hgpo_rllib.learner.data_parallel import on_learners, rank
from hgpo_rllib.learner.learner import HGPOLearner
from tests.integration.test_ports import is_loopback, listeners

pytestmark = pytest.mark.integration
TEXT = spaces.Text(1)


@pytest.fixture
def group(run_config: RunConfig, cluster: None) -> Iterator[LearnerGroup]:
    config = HGPOConfig.from_run_config(run_config)
    config.learners(num_learners=2, num_cpus_per_learner=0)  # an engine of other tests uses one
    group = config.build_learner_group(spaces={DEFAULT_MODULE_ID: (TEXT, TEXT)})
    yield group
    group.shutdown()


def test_results_ports_warnings_and_errors(
    group: LearnerGroup, caplog: pytest.LogCaptureFixture
) -> None:
    assert on_learners(group, add_rank, 7) == 7
    assert any("Executable" in name for name in listeners().values()), "torch's store"
    assert all(map(is_loopback, listeners()))
    with pytest.raises(ValueError, match="7 on learner 1"):
        on_learners(group, fail_on_the_second, 7)
    on_learners(group, warn)
    assert caplog.messages == ["careful 0"]
    with pytest.raises(RayActorError):
        on_learners(group, lose_the_second)


def add_rank(learner: HGPOLearner, number: int) -> int:
    return number + rank()


def fail_on_the_second(learner: HGPOLearner, number: int) -> None:
    if rank() == 1:
        raise ValueError(f"{number} on learner 1")


def warn(learner: HGPOLearner) -> None:
    logging.getLogger(learner_module.__name__).warning("careful %d", rank())


def lose_the_second(learner: HGPOLearner) -> None:
    """Let the second learner exit while the first one hangs, as it would in NCCL."""
    if rank() == 1:
        os._exit(1)
    time.sleep(1800)
