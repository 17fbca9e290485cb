"""Recorded rows and contents of plots for the tests of reports."""

import gzip
import json
import math
from typing import Any

import matplotlib as mpl
import yaml

from hgpo_rllib.reporting.plots import figures
from hgpo_rllib.reporting.style import STYLE
from hgpo_rllib.results import load_runs

PROMPT = 'Use <think> </think> & <action>.</action> <script>alert("x")</script>'


def metrics_row(iteration: int) -> dict[str, Any]:
    """Return one row of metrics.jsonl, with one value None and one NaN."""
    return {
        "iteration": iteration,
        "wall_s": 20.0 * iteration,
        "env_steps": 1000,
        "success_rate": 0.1 * iteration,
        "return_mean": float(iteration),
        "episode_length": 10.0,
        "rollout_s": 9.0,
        "advantage_s": 1.0,
        "update_s": 5.0,
        "tokens_generated": 11106,
        "tokens_per_s": 1234.0,
        "advantage_mean": 0.02 * iteration,
        "policy_loss": -0.01 * iteration,
        "kl": 0.01,
        "clip_fraction": 0.002,
        "grad_norm": None,
        "entropy": math.nan,
        "served_learner_logp_gap": 1e-3,
        "level_fraction_k0": 1.0,
        "level_fraction_k1": 0.5,
        "level_fraction_k10": 0.1,
        "zero_advantage_fraction": 0.25,
    }


def diagnostics_row(iteration: int) -> dict[str, Any]:
    """Return what the estimator's diagnostics add to a row; one gap is NaN in odd iterations."""
    return {
        "oracle_fraction": 0.25,
        "oracle_group_size": 3.0 + iteration,
        "oracle_gap_trajectory": 0.75,
        "oracle_gap_step": 0.5,
        "oracle_gap_hgpo": math.nan if iteration % 2 else 0.25,
        "level_size_shares": [
            [0.0, 0.0, 0.0, 0.25, 0.25, 0.25, 0.25],
            [0.125 * iteration, 0.5 - 0.125 * iteration, 0.25, 0.125, 0.0, 0.0, 0.0],
        ],
    }


def evaluation_row(
    iteration: int, split: str, rate: float, error: float, episodes: int
) -> dict[str, Any]:
    """Return the result of one split."""
    return {
        "iteration": iteration,
        "split": split,
        "success_rate": rate,
        "standard_error": error,
        "episodes": episodes,
        "temperature": 0.4,
        "by_task_type": {
            "pick_and_place": {
                "success_rate": rate,
                "episodes": 25,
                "standard_error": (rate * (1 - rate) / 25) ** 0.5,
            }
        },
    }


def episode(member, success, advantages, iteration=4, split="train"):
    steps = [
        {
            "time": time,
            "anchor": f"You see shelf {time}.",
            "prompt": PROMPT,
            "completion": f"<think>go</think><action>go to shelf {time}</action>",
            "action": f"go to shelf {time}",
            "is_valid": True,
            "inadmissible": time == 1,
            "reward": 0.0,
            "step_return": 9.5,
            "advantage": advantage,
            "group_sizes": [4, 2, 1],
            "weight_version": "5962d5181b87:3",
            "response_tokens": 17,
        }
        for time, advantage in enumerate(advantages)
    ]
    return {
        "format": "hgpo-episode-1",
        "iteration": iteration,
        "split": split,
        "group": 0,
        "member": member,
        "game": f"game-{member}",
        "task_type": "pick_and_place",
        "success": success,
        "episode_return": 10.0 * success,
        "steps": steps,
    }


EPISODES = [
    episode(0, True, [0.5, 0.5]),
    episode(1, True, [1.0, 0.75, 1.0]),
    episode(2, False, [-0.5, -0.5, -0.5]),
    episode(3, False, [-2.0, 1.0]),
]


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path.write_text(text)


def make_run(path, before=0.20, after=0.36, seed=1, error=0.03, **algorithm):
    path.mkdir(parents=True)
    config = {"name": "small", "seed": seed, "algorithm": {"omega": 0.7} | algorithm}
    (path / "config.yaml").write_text(f"# <weight>\n{yaml.safe_dump(config)}")
    write_jsonl(path / "metrics.jsonl", [metrics_row(i) for i in range(1, 5)])
    rates = {0: before, 2: (before + after) / 2, 4: after}
    rows = [
        evaluation_row(iteration, split, rate, error if iteration == 0 else 0.04, episodes)
        for iteration, rate in rates.items()
        for split, episodes in (("valid_seen", 60), ("valid_unseen", 40), ("all", 100))
    ]
    write_jsonl(path / "evaluation.jsonl", rows)
    write_jsonl(path / "episodes" / "iteration_0004.jsonl.gz", EPISODES)
    (path / "summary.json").write_text(json.dumps({"seconds": {"games": 3.5}}))
    return path


def crash(path):
    """Leave the files of a run that crashed early, in the middle of writing a line."""
    for name in ("summary.json", "evaluation.jsonl", "episodes/iteration_0004.jsonl.gz"):
        (path / name).unlink()
    rows = [json.dumps(metrics_row(iteration)) for iteration in (1, 2)]
    (path / "metrics.jsonl").write_text(f"{rows[0]}\n{rows[1][:50]}")
    return path


DRAWN = {}


def panels(run_dirs, name):
    """Return the panels of one plot by title."""
    return {axes.get_title("left"): axes for axes in drawn(*run_dirs)[name].axes}


def drawn(*run_dirs):
    """Return the plots of a report on these runs, cached for tests with the same runs."""
    files = [(path.name, file) for path in run_dirs for file in sorted(path.rglob("*.*"))]
    content = tuple((run, file.name, file.read_bytes()) for run, file in files)
    if content not in DRAWN:
        with mpl.rc_context(STYLE):
            DRAWN[content] = figures(load_runs(run_dirs).experiments())
    return DRAWN[content]


def lines(axes):
    """Return (x, y) of every named line by label."""
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.lines
        if not line.get_label().startswith("_")
    }


def curves(axes):
    """Return (x, y) of every line by color."""
    return {
        line.get_color(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines
    }
