"""Declarations of all metrics of a run: name, unit, reduction, description and panel.

A metric that is declared in `PANELS` and computed appears in metrics.jsonl, TensorBoard, trackers,
the columns of `hgpo_rllib.results`, the Prometheus gauges, the Grafana dashboard, the report and
docs/metrics.md. Run ``python docs/metrics_reference.py`` to regenerate the dashboard and
docs/metrics.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Unit = Literal["", "nats", "ratio", "s", "steps", "tokens", "tokens/s"]
"""``ratio``: a share from 0 to 1. Empty: no unit."""
Reduction = Literal[
    "",
    "group mean",
    "episode mean",
    "step mean",
    "token mean",
    "mini-batch mean",
    "token maximum",
    "sum",
]
"""How the values of an iteration are reduced to one number (`hgpo_rllib.learner.statistics`).

Empty: the number is not a reduction.
"""


@dataclass(frozen=True)
class Metric:
    """One number of an iteration."""

    name: str
    """Key in metrics.jsonl. ``{k}`` is a placeholder for the depth: one number per k = 0..K,
    ``{environment}`` for the name of an environment of a mixture."""
    unit: Unit
    reduction: Reduction
    description: str
    label: str = ""
    """Legend entry in a panel with several metrics."""

    @property
    def gauge(self) -> str:
        """Name of the metric's gauge, without Ray's prefix; placeholders become tags."""
        name = self.name.removesuffix("_k{k}").replace("/{environment}", "_by_environment")
        return f"hgpo_{name}"


@dataclass(frozen=True)
class Panel:
    """Metrics with the same unit that are plotted together."""

    figure: str
    """Figure of the report and heading in docs/metrics.md."""
    title: str
    metrics: tuple[Metric, ...]
    log: bool = False
    """Whether the axis is logarithmic."""
    full_range: bool = False
    """Whether the axis of a ratio ranges from 0 to 1."""

    @property
    def unit(self) -> Unit:
        return self.metrics[0].unit

    @property
    def heading(self) -> str:
        """Its title, with the unit where numbers do not show it."""
        return f"{self.title} (nats)" if self.unit == "nats" else self.title

    @property
    def from_zero(self) -> bool:
        """Whether the axis begins at 0: amounts cannot be negative."""
        return self.unit not in ("", "nats") and not self.log


def _panel(figure: str, title: str, *metrics: Metric, **axis: bool) -> Panel:
    return Panel(figure, title, metrics, **axis)


# fmt: off
PANELS = (
    _panel("training", "Mean advantage",
        Metric("advantage_mean", "", "step mean",
            "advantage of a step; some estimators give its tokens other advantages")),
    _panel("training", "Loss",
        Metric("policy_loss", "", "mini-batch mean",
            "clipped part of the objective, importance weights included", "policy"),
        Metric("loss", "", "mini-batch mean", "the whole objective", "whole")),
    _panel("training", "KL to the reference policy",
        Metric("kl", "nats", "token mean", "estimate of the KL divergence; with `kl_coeff` > 0")),
    _panel("training", "Clip fraction (tokens)",
        Metric("clip_fraction", "ratio", "token mean",
            "tokens whose policy gradient was clipped, or, with `policy_loss=cispo`, whose ratio "
            "was clipped")),
    _panel("training", "Mean return of an episode",
        Metric("return_mean", "", "episode mean", "undiscounted sum of rewards")),
    _panel("training", "Success in training",
        Metric("success_rate", "ratio", "episode mean",
            "episodes that reached the goal, sampled at the training temperature; without those of "
            "replaced groups"), full_range=True),
    _panel("policy", "Entropy",
        Metric("entropy", "nats", "token mean", "entropy of the next-token distribution")),
    _panel("policy", "Gradient norm",
        Metric("grad_norm", "", "mini-batch mean", "gradient norm before clipping")),
    _panel("policy", "Largest token ratio",
        Metric("ratio_max", "", "token maximum",
            "probability ratio of a token, or with another `ratio_level` of a response, new to "
            "old policy"), log=True),
    _panel("policy", "Steps of an episode",
        Metric("episode_length", "steps", "episode mean", "environment steps of an episode")),
    _panel("policy", "Unusable actions (steps)",
        Metric("invalid_rate", "ratio", "step mean",
            "steps with an invalid response (algorithm.md, section 5)", "invalid"),
        Metric("inadmissible_rate", "ratio", "step mean",
            "steps whose action the environment did not offer", "inadmissible"), full_range=True),
    _panel("policy", "At the token limit (steps)",
        Metric("truncated_prompt_rate", "ratio", "step mean",
            "steps whose prompt was shortened", "prompts"),
        Metric("truncated_response_rate", "ratio", "step mean",
            "steps whose response reached the token limit", "responses"), full_range=True),
    _panel("policy", "Gap to the teacher",
        Metric("teacher_gap", "nats", "step mean",
            "mean log-probability of the response tokens under the teacher, minus that under the "
            "engine when they were sampled; with an estimator that reads a teacher")),
    _panel("groups", "Step utilization",
        Metric("level_fraction_k{k}", "ratio", "step mean",
            "steps whose group at depth k has at least two steps", "depth"),
        Metric("oracle_fraction", "ratio", "step mean",
            "steps whose whole history another step of the task shares", "whole history (Oracle)"),
        Metric("zero_advantage_fraction", "ratio", "step mean",
            "steps with advantage exactly 0", "advantage 0"), full_range=True),
    _panel("groups", "Mean size of those groups",
        Metric("level_group_size_k{k}", "steps", "step mean",
            "size of the group at depth k, over steps whose group has at least two", "depth"),
        Metric("oracle_group_size", "steps", "step mean",
            "steps with the same whole history, over steps that share theirs",
            "whole history (Oracle)")),
    _panel("groups", "Distance from the Oracle",
        Metric("oracle_gap_trajectory", "", "step mean",
            "absolute difference between Eq. 1 and the advantage among steps with the same "
            "whole history, over these steps", "trajectory-level"),
        Metric("oracle_gap_step", "", "step mean", "the same for Eq. 2", "step-level"),
        Metric("oracle_gap_hgpo", "", "step mean", "the same for HGPO", "HGPO")),
    _panel("groups", "Groups with equal returns",
        Metric("equal_return_rate", "ratio", "group mean",
            "groups whose members all have the same return, without replaced ones"),
        full_range=True),
    _panel("environments", "Success in training",
        Metric("success_rate/{environment}", "ratio", "episode mean",
            "`success_rate` of one environment of a [mixture](mixtures.md)"), full_range=True),
    _panel("environments", "Steps of an episode",
        Metric("episode_length/{environment}", "steps", "episode mean", "its `episode_length`")),
    _panel("environments", "Groups with equal returns",
        Metric("equal_return_rate/{environment}", "ratio", "group mean",
            "its `equal_return_rate`"), full_range=True),
    _panel("environments", "Episodes",
        Metric("episodes/{environment}", "", "sum", "its `episodes`")),
    _panel("critic", "Value loss",
        Metric("value_loss", "", "mini-batch mean",
            "value loss without its coefficient (this and the next three: only with a critic)")),
    _panel("critic", "Explained variance",
        Metric("explained_variance", "", "",
            "1 - Var(R - V) / Var(R) over steps, with step returns R and the values V before "
            "the update: 1 perfect, 0 as good as a constant; absent where all R are equal")),
    _panel("critic", "Clipped values (steps)",
        Metric("value_clip_fraction", "ratio", "step mean",
            "steps whose value gradient was clipped; values with an estimator of tokens")),
    _panel("critic", "Gradient norm of the critic",
        Metric("critic_grad_norm", "", "mini-batch mean",
            "gradient norm of the critic's own parameters before clipping")),
    _panel("mismatch", "Gap of log-probabilities",
        Metric("behavior_logp_gap", "nats", "token maximum",
            "difference between the engine's and the learner's log-probability of a sampled "
            "token, before the first optimizer step (algorithm.md, section 7: which tokens)",
            "sampled, largest"),
        Metric("behavior_logp_gap_mean", "nats", "token mean",
            "the same difference", "sampled, mean"),
        Metric("served_learner_logp_gap", "nats", "token maximum",
            "the same difference on the probe, after the update (algorithm.md, section 6)",
            "probe after update"), log=True),
    _panel("mismatch", "KL(engine ‖ learner)",
        Metric("behavior_kl", "nats", "token mean", "k3 estimate of KL(engine || learner)")),
    _panel("mismatch", "Importance weight",
        Metric("importance_weight", "", "token mean",
            "importance weight, learner over engine (this and the next: only if used)")),
    _panel("mismatch", "Cut weights (tokens)",
        Metric("importance_cut_fraction", "ratio", "token mean",
            "tokens whose importance weight was truncated or masked")),
    _panel("mismatch", "Stale responses",
        Metric("stale_rate", "ratio", "step mean",
            "responses whose first token was sampled with weights older than the latest before the "
            "update; 0 in the synchronous schedule"), full_range=True),
    _panel("speed", "Seconds of an iteration",
        Metric("iteration_s", "s", "", "the whole iteration", "all"),
        Metric("rollout_s", "s", "",
            "sampling; if the schedule is not synchronous, it overlaps other iterations",
            "rollout"),
        Metric("update_s", "s", "", "the update without `advantage_s`", "update"),
        Metric("sync_s", "s", "", "publishing weights, and the probe", "weight sync")),
    _panel("speed", "Waiting and advantages (s)",
        Metric("rollout_wait_s", "s", "",
            "part of `rollout_s` that the learner waited for; all of it in the synchronous "
            "schedule", "rollout, waited for"),
        Metric("advantage_s", "s", "", "returns and advantages", "advantages")),
    _panel("speed", "Generated tokens per second",
        Metric("tokens_per_s", "tokens/s", "",
            "`tokens_generated / rollout_s`; less than the engines generate if the schedule is not "
            "synchronous")),
    _panel("speed", "Seconds of a step",
        Metric("request_s", "s", "step mean", "from a prompt to its response", "request"),
        Metric("engine_s", "s", "step mean", "the engine's part of `request_s`", "engine"),
        Metric("env_s", "s", "step mean",
            "the environment's step, with the wait for a thread", "environment")),
    _panel("volume", "Size of an iteration",
        Metric("episodes", "", "sum", "episodes", "episodes"),
        Metric("env_steps", "", "sum", "environment steps", "steps"),
        Metric("tokens_generated", "", "sum", "response tokens", "response tokens"), log=True),
    _panel("volume", "Failures",
        Metric("env_errors", "", "sum", "failed environments", "environment errors"),
        Metric("env_timeouts", "", "sum", "environments that timed out", "time-outs"),
        Metric("request_errors", "", "sum", "failed requests", "request errors"),
        Metric("lost_members", "", "sum",
            "episodes given up after `rollout.max_attempts`", "lost episodes"),
        Metric("lost_groups", "", "sum",
            "groups left with fewer than two episodes (none, with `rollout.group_size=1`)",
            "lost groups"),
        Metric("stale_groups", "", "sum",
            "groups older than `rollout.max_staleness`, not used", "stale groups"),
        Metric("replaced_groups", "", "sum",
            "groups with equal returns, not used (`rollout.max_replaced_groups`)",
            "replaced groups"),
        Metric("skipped_batches", "", "sum",
            "mini-batches without an optimizer step: bad ones, or all of an iteration without a "
            "signal", "skipped mini-batches")),
    _panel("volume", "Iterations",
        Metric("iteration", "", "", "number of the iteration, from 1")),
    _panel("volume", "Training time",
        Metric("wall_s", "s", "", "since training began in this command, evaluations included")),
)
EVALUATION = (
    _panel("evaluation", "Held-out success",
        Metric("success_rate", "ratio", "episode mean", "episodes that reached the goal"),
        Metric("standard_error", "ratio", "", "standard error of `success_rate` over games",
            "standard error"), full_range=True),
    _panel("evaluation", "Steps of a held-out episode",
        Metric("episode_length", "steps", "episode mean", "environment steps of an episode")),
    _panel("evaluation", "Held-out episodes",
        Metric("episodes", "", "sum", "episodes")),
    _panel("evaluation", "Temperature of evaluations",
        Metric("temperature", "", "", "sampling temperature")),
    _panel("evaluation", "Seconds of an evaluation",
        Metric("evaluation_s", "s", "", "the evaluation of all splits")),
)
# fmt: on
METRICS: Mapping[str, Metric] = {
    metric.name: metric for panel in PANELS for metric in panel.metrics
}
"""Metrics of an iteration, by name in metrics.jsonl."""
EVALUATION_METRICS: Mapping[str, Metric] = {
    metric.name: metric for panel in EVALUATION for metric in panel.metrics
}
"""Metrics of an evaluated split, by name in evaluation.jsonl; see `run.live_metrics`."""
OF_ENVIRONMENTS = tuple(
    name.removesuffix("{environment}") for name in METRICS if name.endswith("{environment}")
)
"""Prefixes of the metrics of each environment of a mixture, such as ``success_rate/``."""


def find_metric(name: str) -> tuple[Metric, dict[str, str]]:
    """Return the metric with this name in metrics.jsonl, and the tags of its gauge.

    Raises:
        KeyError: no such metric is declared.
    """
    base, _, environment = name.partition("/")
    if environment:
        key, tags = f"{base}/{{environment}}", {"environment": environment}
    else:
        base, _, depth = name.rpartition("_k")
        is_depth = base and depth.isdecimal()
        key, tags = (f"{base}_k{{k}}", {"k": depth}) if is_depth else (name, {})
    try:
        return METRICS[key], tags
    except KeyError:
        raise KeyError(f"the metric {name!r} is not declared in hgpo_rllib/metrics.py") from None
