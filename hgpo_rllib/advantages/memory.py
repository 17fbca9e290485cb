"""Most memory that a computation holds (Table 3); for an estimator in a run, in its own process.

`tracemalloc` may only be stopped where no other thread allocates: CPython before 3.14 can crash
with a segmentation fault otherwise (gh-128679), and Ray's driver and workers have many threads.
"""

import io
import json
import logging
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, fields

import numpy as np

from hgpo_rllib.advantages.estimators import find_estimator
from hgpo_rllib.advantages.settings import EstimatorSettings
from hgpo_rllib.advantages.steps import StepArrays

logger = logging.getLogger(__name__)


def peak_mib(function: Callable[[], object]) -> float:
    """Most memory that Python and NumPy held during a call beyond what was there before, MiB.

    Only for a process with one thread.
    """
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        function()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (peak - before) / 2**20


def estimator_peak_mib(estimator: str, steps: StepArrays, settings: EstimatorSettings) -> float:
    """`peak_mib` of an estimator on these steps, in a new process: about 0.2 s.

    NaN, with a warning, where that process fails: a run goes on without this number.
    """
    arrays = {field.name: getattr(steps, field.name) for field in fields(steps)}
    given = io.BytesIO()
    np.savez(given, **{name: values for name, values in arrays.items() if values is not None})
    command = [sys.executable, "-m", __name__, estimator, json.dumps(asdict(settings))]
    # In a session of its own, Ctrl-C is for the run alone.
    answer = subprocess.run(
        command, input=given.getvalue(), capture_output=True, start_new_session=True, check=False
    )
    if answer.returncode:
        last = answer.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        logger.warning("the estimator's memory was not measured: %s", last)
        return float("nan")
    return float(answer.stdout)


def _main(estimator: str, settings: str) -> None:
    with np.load(io.BytesIO(sys.stdin.buffer.read())) as arrays:
        steps = StepArrays(**arrays)
    chosen = EstimatorSettings(**json.loads(settings))
    print(peak_mib(lambda: find_estimator(estimator)(steps, chosen)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
