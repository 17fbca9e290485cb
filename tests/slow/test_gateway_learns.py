"""An agent in another process learns through the gateway. Takes minutes: `pytest -m slow`."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from hgpo_rllib.config import load_config
from hgpo_rllib.run.trainer import train
from tests.paths import ROOT
from tests.processes import Processes, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
EXAMPLE = ROOT / "tuned_examples" / "alfworld_six_games.yaml"


def test_success_rises_by_ten_points(tmp_path: Path) -> None:
    """An external agent with its own engine and prompts learns six games."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    changes = [f"cache={tmp_path / 'cache'}", f"output={tmp_path}", "iterations=12"]
    config = load_config(EXAMPLE, [*changes, f"rollout.gateway_port={port}"])
    processes, agents = Processes(), list[subprocess.Popen[bytes]]()
    ended = threading.Event()

    def start_agent() -> None:
        while not ended.is_set():
            try:
                httpx.get(url, trust_env=False)
            except httpx.TransportError:
                time.sleep(1)
            else:
                script = [sys.executable, ROOT / "examples" / "gateway_agent.py", url, "4"]
                agents.append(subprocess.Popen(script, env={**processes.environment}))
                return

    starting = threading.Thread(target=start_agent)
    starting.start()
    try:
        run = train(config)
    finally:
        ended.set()
        starting.join()
    (agent,) = agents
    assert agent.wait(120) == 0
    processes.assert_none()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    success = [row["success_rate"] for row in rows]
    print(success)
    assert np.mean(success[-3:]) > np.mean(success[:3]) + 0.1
