"""Calls to several learners in separate processes."""

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from gymnasium import spaces
from ray.exceptions import RayActorError
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.tune.utils import file_transfer

from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.config import RunConfig
from hgpo_rllib.learner import learner as learner_module
from hgpo_rllib.learner.data_parallel import copy_folder, on_learners, rank
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


@pytest.mark.parametrize("shared", [True, False])
def test_a_folder_that_both_nodes_have_is_linked(
    shared: bool, cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the folder of this node differs from that of the source, the latter is copied."""
    source, target = tmp_path / "state", tmp_path / "copy"
    (source / "learner").mkdir(parents=True)
    (source / "learner/weights").write_text("w")
    target.mkdir()
    if not shared:
        own = {"./learner/weights": (0.0, 1)}
        monkeypatch.setattr(file_transfer, "_get_recursive_files_and_stats", lambda path: own)
    ip = ray.util.get_node_ip_address()
    copy_folder(ip, source, ip, str(target))
    assert (target / "learner/weights").read_text() == "w"
    assert (target / "learner").is_symlink() == shared


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
