"""Which trials begin and which end early: Tune's own classes, without Ray's processes."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.experiment import Experiment
from ray.tune.schedulers import TrialScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.tune.search.variant_generator import grid_search

from hgpo_rllib.config import load_config
from hgpo_rllib.placement import trial_demand
from hgpo_rllib.run import sweep
from hgpo_rllib.run.sweep import ResourceAwareVariantGenerator, make_scheduler
from hgpo_rllib.run.trial import report
from tests.unit.cli.command import POCKET
from tests.unit.reporting.reporting_rows import evaluation_row

STOP, GO = TrialScheduler.STOP, TrialScheduler.CONTINUE
CONFIG = load_config(POCKET, ["iterations=8", "evaluation.interval=2"])


def test_as_many_trials_begin_as_the_cluster_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pocket trial needs two CPUs; nodes that join during the sweep are used."""
    nodes: list[dict[str, float]] = [{"CPU": 3.0}]
    monkeypatch.setattr(sweep, "alive_nodes", lambda: nodes)
    search = ResourceAwareVariantGenerator([trial_demand(CONFIG.cluster, CONFIG.policy_server)])
    assert isinstance(search, BasicVariantGenerator), "Tune would ask for one trial at a time"
    space = {"trial": grid_search([1, 2, 3, 4])}
    search.add_configurations([Experiment("x", lambda _: None, config=space)])
    first = search.next_trial()
    assert first is not None
    assert search.next_trial() is None
    nodes.append({"CPU": 2.0})
    assert search.next_trial() is not None
    assert search.next_trial() is None
    search.on_trial_complete(first.trial_id)
    third = search.next_trial()
    assert third is not None
    assert third.config == {"trial": 3}


def test_a_trial_begins_only_if_the_largest_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trials with one replica would fit four CPUs, but not one with three beside another."""
    monkeypatch.setattr(sweep, "alive_nodes", lambda: [{"CPU": 4.0}])
    replicas = [load_config(POCKET, [f"policy_server.num_replicas={n}"]) for n in (1, 3)]
    search = ResourceAwareVariantGenerator(
        [trial_demand(config.cluster, config.policy_server) for config in replicas]
    )
    space = {"trial": grid_search([1, 2])}
    search.add_configurations([Experiment("x", lambda _: None, config=space)])
    assert search.next_trial() is not None
    assert search.next_trial() is None


def write_run(path: Path, success: dict[int, float]) -> Path:
    path.mkdir()
    rows = [
        evaluation_row(iteration, split, rate if split == "all" else 1 - rate, 0.03, 100)
        for iteration, rate in success.items()
        for split in ("valid_seen", "all")
    ]
    (path / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def decisions(scheduler: TrialScheduler, name: str, success: dict[int, float]) -> list[str]:
    """Return the scheduler's decision for each evaluation of a trial."""
    trial: Any = SimpleNamespace(trial_id=name)
    scheduler.on_trial_add(None, trial)
    return [
        scheduler.on_trial_result(None, trial, report({"iteration": i, "success_rate": rate}))
        for i, rate in success.items()
    ]


def test_the_worse_half_stops_at_evaluations_that_double(tmp_path: Path) -> None:
    """With interval 2, trials are compared after 2 and 4 iterations, not after 0 or 3."""
    scheduler = make_scheduler("asha", [CONFIG], [])
    good = {0: 0.1, 2: 0.5, 3: 0.4, 4: 0.6}
    assert decisions(scheduler, "good", good) == [GO, GO, GO, GO]
    assert decisions(scheduler, "bad", {0: 0.0, 2: 0.4}) == [GO, STOP]
    assert decisions(scheduler, "equal", {0: 0.1, 2: 0.5, 3: 0.1, 4: 0.5}) == [GO, GO, GO, STOP]


def test_a_grid_over_intervals_and_iterations() -> None:
    """Trials are compared from the longest interval on; the longest trials run to their end."""
    configs = [
        load_config(POCKET, [f"iterations={iterations}", f"evaluation.interval={interval}"])
        for iterations, interval in ((8, 2), (16, 4))
    ]
    scheduler = make_scheduler("asha", configs, [])
    good = {2: 0.5, 4: 0.5, 8: 0.6, 12: 0.7}
    assert decisions(scheduler, "good", good) == [GO, GO, GO, GO]
    assert decisions(scheduler, "bad", {2: 0.1, 4: 0.1}) == [GO, STOP]


def test_a_resumed_sweep_compares_with_what_had_finished(tmp_path: Path) -> None:
    done = write_run(tmp_path / "done", {0: 0.1, 2: 0.7, 4: 0.6, 6: 0.6, 8: 0.7})
    scheduler = make_scheduler("asha", [CONFIG], [done])
    assert decisions(scheduler, "bad", {0: 0.2, 2: 0.4}) == [GO, STOP]
    forgetful = make_scheduler("asha", [CONFIG], [])
    assert decisions(forgetful, "bad", {0: 0.2, 2: 0.4}) == [GO, GO]


def test_without_a_scheduler_nothing_stops() -> None:
    scheduler = make_scheduler(None, [CONFIG], [])
    assert decisions(scheduler, "good", {2: 0.9}) == [GO]
    assert decisions(scheduler, "bad", {2: 0.0, 4: 0.0}) == [GO, GO]
