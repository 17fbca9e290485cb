"""Training learns. Takes minutes: `pytest -m slow`."""

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
    """The success rate passes 80 % within 20 iterations, starting from a clone below 60 %."""
    run = train(load_config(EXAMPLE, [f"cache={tmp_path / 'cache'}", f"output={tmp_path}"]))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    success = [row["success_rate"] for row in rows]
    assert success[0] < 0.6
    assert max(success) > 0.8
    assert np.mean(success[-3:]) > np.mean(success[:3]) + 0.2
