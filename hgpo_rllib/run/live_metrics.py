"""The numbers of a running command as gauges of Ray's metrics, for Prometheus and Grafana."""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ray.util.metrics import Gauge

REFRESH_SECONDS = 5.0
"""Ray reports a gauge every 10 seconds, and drops it 20 seconds after it was last set."""


@dataclass(frozen=True)
class Measure:
    """One gauge, and the value of a row that it shows."""

    name: str
    """Ends with the unit where there is one. Prometheus sees it behind Ray's prefix `ray_`."""
    text: str
    """What it says, in the exposition and in docs/monitoring.md."""
    source: str
    """Regular expression of the row's keys; its group, if any, is the value of the last tag."""
    tags: tuple[str, ...] = ("run",)
    """Names of the tags; the name of the run comes first."""


ITERATION = (
    Measure("hgpo_updates", "Version of the weights: updates of the policy so far", "iteration"),
    Measure("hgpo_iteration_seconds", "Time of the last iteration", "iteration_s"),
    Measure(
        "hgpo_phase_seconds",
        "Time of the last iteration's phases",
        "(rollout|rollout_wait|advantage|update|sync)_s",
        ("run", "phase"),
    ),
    Measure(
        "hgpo_generated_tokens_per_second", "Response tokens by time of sampling", "tokens_per_s"
    ),
    Measure("hgpo_generated_tokens", "Response tokens of the last iteration", "tokens_generated"),
    Measure("hgpo_episodes", "Episodes of the last iteration", "episodes"),
    Measure("hgpo_steps", "Environment steps of the last iteration", "env_steps"),
    Measure("hgpo_success_ratio", "Episodes that reached the goal, in training", "success_rate"),
    Measure("hgpo_episode_return", "Mean undiscounted reward of an episode", "return_mean"),
    Measure("hgpo_episode_steps", "Mean length of an episode", "episode_length"),
    Measure("hgpo_invalid_steps_ratio", "Steps with a malformed response", "invalid_rate"),
    Measure(
        "hgpo_inadmissible_steps_ratio",
        "Steps whose action the environment did not offer",
        "inadmissible_rate",
    ),
    Measure("hgpo_truncated_prompts_ratio", "Prompts that lost a part", "truncated_prompt_rate"),
    Measure(
        "hgpo_truncated_responses_ratio",
        "Responses cut at the limit of tokens",
        "truncated_response_rate",
    ),
    Measure("hgpo_request_seconds", "Mean time from a prompt to its response", "request_s"),
    Measure("hgpo_engine_seconds", "Mean part of it that the engine had", "engine_s"),
    Measure("hgpo_env_step_seconds", "Mean time of an environment's step", "env_s"),
    Measure(
        "hgpo_stale_steps_ratio",
        "Steps drawn under older weights than those of their update",
        "stale_rate",
    ),
    Measure(
        "hgpo_rollout_failures",
        "What failed in the last iteration's rollout",
        "((?:env_error|env_timeout|request_error|lost_member|lost_group)s)",
        ("run", "failure"),
    ),
    Measure("hgpo_loss", "Whole objective, mean over mini-batches", "loss"),
    Measure(
        "hgpo_policy_loss", "Clipped part of the objective, mean over mini-batches", "policy_loss"
    ),
    Measure("hgpo_kl_nats", "KL to the starting policy, mean over tokens", "kl"),
    Measure("hgpo_clipped_tokens_ratio", "Tokens whose gradient the clip removed", "clip_fraction"),
    Measure("hgpo_entropy_nats", "Entropy of the policy, mean over tokens", "entropy"),
    Measure("hgpo_gradient_norm", "Gradient norm before clipping, mean", "grad_norm"),
    Measure("hgpo_largest_token_ratio", "Largest ratio of a token, new to old", "ratio_max"),
    Measure("hgpo_value_loss", "Value loss of the critic, mean over mini-batches", "value_loss"),
    Measure(
        "hgpo_clipped_values_ratio",
        "Steps whose value's gradient the clip removed",
        "value_clip_fraction",
    ),
    Measure(
        "hgpo_explained_variance_ratio",
        "Share of the variance of step returns that the critic's values explain",
        "explained_variance",
    ),
    Measure(
        "hgpo_critic_gradient_norm",
        "Norm of the critic's own gradient before clipping, mean",
        "critic_grad_norm",
    ),
    Measure(
        "hgpo_skipped_batches",
        "Mini-batches without an optimiser step: bad ones, or all for want of a signal",
        "skipped_batches",
    ),
    Measure(
        "hgpo_behaviour_logp_gap_nats",
        "Mismatch: largest log-probability gap of sampled tokens, engine to learner",
        "behaviour_logp_gap",
    ),
    Measure(
        "hgpo_behaviour_logp_gap_mean_nats",
        "Mismatch: mean of that gap over tokens",
        "behaviour_logp_gap_mean",
    ),
    Measure(
        "hgpo_behaviour_kl_nats",
        "Mismatch: KL between engine and learner, mean over tokens",
        "behaviour_kl",
    ),
    Measure(
        "hgpo_importance_weight",
        "Importance weight, learner over engine, mean over tokens",
        "importance_weight",
    ),
    Measure(
        "hgpo_importance_cut_tokens_ratio",
        "Tokens whose importance weight is truncated or masked",
        "importance_cut_fraction",
    ),
    Measure(
        "hgpo_served_logp_gap_nats",
        "Mismatch after the update: the same on the probe",
        "served_learner_logp_gap",
    ),
    Measure("hgpo_advantage", "Mean advantage of the steps", "advantage_mean"),
    Measure(
        "hgpo_zero_advantage_steps_ratio",
        "Steps with advantage exactly 0",
        "zero_advantage_fraction",
    ),
    Measure(
        "hgpo_level_utilisation_ratio",
        "Steps whose group at this level has at least two steps",
        r"level_fraction_k(\d+)",
        ("run", "level"),
    ),
    Measure(
        "hgpo_level_group_steps",
        "Mean size of those groups",
        r"level_group_size_k(\d+)",
        ("run", "level"),
    ),
    Measure(
        "hgpo_oracle_steps_ratio",
        "Steps that share their whole history with another",
        "oracle_fraction",
    ),
    Measure("hgpo_oracle_group_steps", "Mean size of their groups", "oracle_group_size"),
    Measure(
        "hgpo_oracle_gap",
        "Mean distance of an estimator's advantage from the one within those groups",
        r"oracle_gap_(\w+)",
        ("run", "estimator"),
    ),
)
EVALUATION = (
    Measure(
        "hgpo_evaluation_success_ratio",
        "Held-out episodes that reached the goal",
        "success_rate",
        ("run", "split"),
    ),
    Measure(
        "hgpo_evaluation_standard_error_ratio",
        "Standard error of that ratio",
        "standard_error",
        ("run", "split"),
    ),
    Measure(
        "hgpo_evaluation_episode_steps",
        "Mean length of a held-out episode",
        "episode_length",
        ("run", "split"),
    ),
)
IN_FLIGHT = Measure(
    "hgpo_prompts_in_flight",
    "Queue length: prompts that wait for the policy server's answer",
    "in_flight",
)
MEASURES = (*ITERATION, *EVALUATION, IN_FLIGHT)


@dataclass(frozen=True)
class Sample:
    """What one gauge shows for one set of tags."""

    name: str
    tags: Mapping[str, str]
    value: float


def iteration_samples(row: Mapping[str, Any], run: str) -> Iterator[Sample]:
    """The samples of a line of metrics.jsonl; a value that is None has none."""
    yield from _samples(ITERATION, row, (run,))


def evaluation_samples(rows: Iterable[Mapping[str, Any]], run: str) -> Iterator[Sample]:
    """The samples of an evaluation, one line of evaluation.jsonl per split."""
    for row in rows:
        yield from _samples(EVALUATION, row, (run, row["split"]))


def _samples(
    measures: Iterable[Measure], row: Mapping[str, Any], tags: tuple[str, ...]
) -> Iterator[Sample]:
    for measure in measures:
        for key, value in row.items():
            match = re.fullmatch(measure.source, key)
            if match and value is not None:
                named = dict(zip(measure.tags, (*tags, *match.groups()), strict=True))
                yield Sample(measure.name, named, float(value))


class LiveMetrics:
    """Shows the latest iteration and evaluation of one run while its block lasts.

    A caller only leaves the values here. A thread sets the gauges, again and again: Ray
    forgets a gauge long before a large model's iteration ends. Where Ray's metrics are not
    collected, nothing comes of it.
    """

    def __init__(self, run: str, prompts_in_flight: Callable[[], int]):
        """`run` is the value of the tag; `prompts_in_flight` is asked from another thread."""
        self._run = run
        self._prompts_in_flight = prompts_in_flight
        self._gauges = {m.name: Gauge(m.name, m.text, tag_keys=m.tags) for m in MEASURES}
        self._iteration: list[Sample] = []
        self._evaluation: list[Sample] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="live-metrics", daemon=True)

    def __enter__(self) -> Self:
        """Start to set the gauges."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop: Ray, which holds the gauges, may end after that."""
        self._ended.set()
        self._thread.join()

    def publish_iteration(self, row: Mapping[str, Any]) -> None:
        """Show this line of metrics.jsonl from now on."""
        self._iteration = list(iteration_samples(row, self._run))

    def publish_evaluation(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Show these lines of evaluation.jsonl from now on."""
        self._evaluation = list(evaluation_samples(rows, self._run))

    def _refresh(self) -> None:
        while not self._ended.wait(REFRESH_SECONDS):
            waiting = Sample(IN_FLIGHT.name, {"run": self._run}, self._prompts_in_flight())
            for sample in (*self._iteration, *self._evaluation, waiting):
                self._gauges[sample.name].set(sample.value, tags=dict(sample.tags))
