"""A study with synthetic trials."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hgpo_rllib.studies.records import CURVES, Record, SplitRecord, write_record
from hgpo_rllib.studies.settings import Study, settings_hash

TASKS = 40
SPLITS = {"valid_seen": range(TASKS // 2), "valid_unseen": range(TASKS // 2)}
EVALUATED = [0, 2, 4]
CONTENT: dict[str, Any] = {
    "title": "Two arms",
    "question": "Is the first one better?",
    "base": "alfworld_pocket",
    "iterations": 4,
    "splits": [*SPLITS],
    "seeds": 4,
    "overrides": {"evaluation.interval": 2},
    "arms": {
        "good": {"algorithm.estimator": "hgpo"},
        "bad": {"algorithm.estimator": "grpo"},
        "other": {"algorithm.estimator": "rloo"},
    },
    "analysis": {
        "baseline": "bad",
        "claims": [
            {"text": "Good is better.", "a": "good", "b": "bad"},
            {"text": "Bad is better.", "a": "bad", "b": "good", "measure": "area"},
            {"text": "The two are equal.", "a": "other", "b": "bad"},
        ],
    },
}  # fmt: skip
SUCCESS = {"good": 0.8, "bad": 0.4, "other": 0.41}
ITERATION_S = {"good": 15.0, "bad": 10.0, "other": 8.0}


def changed(**changes: Any) -> dict[str, Any]:
    return json.loads(json.dumps(CONTENT | changes))


def folder_with(tmp_path: Path, content: Mapping[str, Any]) -> Path:
    folder = tmp_path / "studies"
    folder.mkdir(exist_ok=True)
    (folder / "arms.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def synthetic(study: Study, arm: str, seed: int, success: float | None = None) -> Record:
    """Return a trial that starts at 30 % and ends at `success`, by default that of its arm."""
    success = SUCCESS[arm] if success is None else success
    rng = np.random.default_rng([seed, *arm.encode()])
    rates = 0.3 + np.linspace(0, 1, len(EVALUATED))[:, None] * (success - 0.3)
    splits = {
        split: SplitRecord(
            tasks=list(tasks),
            episodes=[2] * len(tasks),
            successes=rng.binomial(2, rates, (len(EVALUATED), len(tasks))).tolist(),
        )
        for split, tasks in SPLITS.items()
    }
    return Record(
        study="arms",
        arm=arm,
        seed=seed,
        settings_hash=settings_hash(study.config(arm, seed)),
        commit="0123456789abcdef",
        versions={"numpy": "2"},
        initial_model="m",
        tasks=dict.fromkeys(SPLITS, "t"),
        iterations=4,
        training={name: [0.1, 0.2, None, 0.4] for name in CURVES},
        evaluated=EVALUATED,
        splits=splits,
        diagnostics={
            "level_fraction_k0": 0.9,
            "oracle_gap_hgpo": None,
            "tokens_generated": 12345.0,
            "advantage_s": 0.0123,
            "iteration_s": ITERATION_S.get(arm, 10.0),
        },
        group_sizes={"0": [0.1, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1]},
        seconds={"training": 12.5},
    )


def finish(study: Study, docs: Path, arms: Mapping[str, int]) -> None:
    """Write records of this many seeds of each arm."""
    for arm, seeds in arms.items():
        for seed in range(seeds):
            write_record(synthetic(study, arm, seed), docs)
