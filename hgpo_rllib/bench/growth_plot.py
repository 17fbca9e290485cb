"""Plot of the growth of rollouts with the number of concurrent episodes."""

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from hgpo_rllib.bench.measure import Row
from hgpo_rllib.reporting import style

PANELS = (
    ("orchestration per step (CPU ms)", lambda row: row["orchestration_ms"]),
    ("memory of all episodes (MiB)", lambda row: row["kib_per_episode"] * row["episodes"] / 2**10),
)


def growth_curves(rollouts: Sequence[Row]) -> Figure:
    """Plot CPU time per step and memory by number of episodes, one curve per number of runners.

    `rollouts` is that table of `hgpo_rllib.bench.scale.bench_scale`.
    """
    numbers = list(dict.fromkeys(row["runners"] for row in rollouts))
    with mpl.rc_context(style.STYLE):
        figure, axes = style.grid(len(PANELS), 3.2)
        for (label, value), place in zip(PANELS, axes, strict=True):
            for index, number in enumerate(numbers):
                rows = [row for row in rollouts if row["runners"] == number]
                place.plot(
                    [row["episodes"] for row in rows],
                    [value(row) for row in rows],
                    color=style.colour_of(index),
                    marker="o",
                )
            place.set(xscale="log", xlabel="concurrent episodes", title=label)
        axes[0].set_ylim(bottom=0)
        axes[1].set_yscale("log")
        style.legend_above(
            figure, ["in the main process" if n == 0 else f"{n} env runners" for n in numbers]
        )
    return figure
