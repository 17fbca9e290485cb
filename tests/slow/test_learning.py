"""Training learns: minutes long, run with `pytest -m slow`."""

import json
from pathlib import Path

import numpy as np
import pytest

from hgpo_rllib.config import load_config
from hgpo_rllib.run.trainer import train
from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
EXAMPLE = ROOT / "tuned_examples" / "alfworld_six_games.yaml"


def test_success_on_six_fixed_games_passes_80_percent(tmp_path: Path) -> None:
    """Within 20 iterations from a clone that wins far less."""
    run = train(load_config(EXAMPLE, [f"cache={tmp_path / 'cache'}", f"output={tmp_path}"]))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    success = [row["success_rate"] for row in rows]
    assert success[0] < 0.6
    assert max(success) > 0.8
    assert np.mean(success[-3:]) > np.mean(success[:3]) + 0.2
