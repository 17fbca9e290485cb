"""All checks of `hgpo doctor`, in order."""

from collections.abc import Iterator

from transformers.utils import logging as transformers_logging

from hgpo_rllib.config import RunConfig
from hgpo_rllib.doctor.machine import Check, machine_checks
from hgpo_rllib.doctor.trial_run import trial_checks
from hgpo_rllib.reporting.console import TrainingConsole
from hgpo_rllib.run.cluster import ray_cluster
from hgpo_rllib.run.model_size import find_size
from hgpo_rllib.run.trainer import PhaseTimes, prepare_inputs
from hgpo_rllib.run.trial import describe


def examine(config: RunConfig, console: TrainingConsole) -> Iterator[Check]:
    """Yield the checks of the machine and, if they find no problem, those of a short run."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    model, healthy = find_size(config), True
    for check in machine_checks(config, model):
        healthy = healthy and check.problem is None
        yield check
    if not healthy:
        yield Check("short run", "not started", "solve the problems above first")
        return
    try:
        config = prepare_inputs(config, console, PhaseTimes())
        with ray_cluster(config):
            yield from trial_checks(config, model)
    except Exception as error:  # whatever it is, it would end a run too
        yield Check("short run", "failed", describe(error))
