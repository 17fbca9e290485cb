"""From the recorded trials of a study to the rows of its tables."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from hgpo_rllib import metrics
from hgpo_rllib.advantages.diagnostics import SIZE_LABELS
from hgpo_rllib.bench.fidelity import Result, measure
from hgpo_rllib.jsonl import ResultsError
from hgpo_rllib.reporting.numbers import MISSING
from hgpo_rllib.studies import statistics as st
from hgpo_rllib.studies.records import Record
from hgpo_rllib.studies.settings import Study

MIN_PAIRS = 3
"""Minimum number of pairs of trials to estimate the spread of a difference."""
FIRST_AND_LAST = ("success_rate", "inadmissible_rate", "invalid_rate")
"""Metrics of which the first and the last iterations are shown."""
MIN_ESTIMATORS = 4
"""Minimum number of estimators for a correlation."""
MIN_SEEDS = 5
"""Minimum number of common seeds for comparing success with fidelity while trials are missing."""
MAX_ARMS = 8
"""Maximum number of arms whose curves and diagnostics are shown side by side."""
WINDOW = 5  # first and last iterations that are averaged
Row = dict[str, str]


class EstimatorFidelity(NamedTuple):
    """An estimator's fidelity and success."""

    arm: str
    correlation: float
    """Corrected correlation with the true advantage."""
    success: st.Estimate
    """After training."""


@dataclass(frozen=True)
class Results:
    """The finished trials of a study."""

    study: Study
    records: Sequence[Record]
    fidelity: Result | None = None
    """See `Analysis.fidelity`."""

    def __post_init__(self) -> None:
        """Check that all trials were evaluated alike.

        Raises:
            ResultsError: trials were evaluated on other tasks or after other iterations.
        """
        for record in self.records[1:]:
            first = self.records[0]
            if _evaluated(record, self.study) != _evaluated(first, self.study):
                raise ResultsError(
                    f"{record.study}: {first.trial} and {record.trial} were not evaluated on the "
                    "same tasks after the same iterations: remove one record and run it again"
                )

    @property
    def is_complete(self) -> bool:
        """Whether all trials have finished."""
        return len(self.records) == self.study.size

    @property
    def has_verdicts(self) -> bool:
        """Whether all trials of the claims' arms have finished."""
        arms = {arm for claim in self.study.analysis.claims for arm in claim.arms}
        return all(len(self.seeds(arm)) == len(self.study.seeds) for arm in arms)

    @property
    def arms(self) -> list[str]:
        """Arms with finished trials."""
        return [arm for arm in self.study.arms if self.seeds(arm)]

    @property
    def detailed_arms(self) -> list[str]:
        """Arms with curves and diagnostics: all, or those of the claims if all are too many."""
        named = {arm for claim in self.study.analysis.claims for arm in claim.arms}
        shown = [arm for arm in self.arms if arm in named]
        return shown if shown and len(self.arms) > MAX_ARMS else self.arms

    def of(self, arm: str, seeds: Sequence[int] | None = None) -> list[Record]:
        """Return the records of an arm, by seed: those of `seeds`, or all."""
        found = [r for r in self.records if r.arm == arm and (seeds is None or r.seed in seeds)]
        return sorted(found, key=lambda r: r.seed)

    def seeds(self, *arms: str) -> list[int]:
        """Return the seeds that all of these arms have."""
        common = set.intersection(*({r.seed for r in self.of(arm)} for arm in arms))
        return sorted(common)

    def curves(self, arm: str, seeds: Sequence[int] | None = None) -> dict[str, st.Floats]:
        """Return success rates by split, shape ``(seeds, evaluations, tasks)``."""
        records = self.of(arm, seeds)
        return {s: np.array([_rates(record, s) for record in records]) for s in self.study.splits}

    def scores(self, arm: str, measure: str, seeds: Sequence[int] | None = None) -> list[st.Floats]:
        """Return the scores of an arm for `statistics`.

        Args:
            arm: the arm.
            measure: ``final``, ``before`` (training), or ``area``; see `Claim.measure`.
            seeds: the seeds; None: all of the arm.
        """
        curves = self.curves(arm, seeds).values()
        if measure == "area":
            iterations = self.records[0].evaluated
            return [st.area(iterations, np.moveaxis(curve, 1, 2)) for curve in curves]
        return [curve[:, 0 if measure == "before" else -1] for curve in curves]

    def difference(self, *arms: str, measure: str) -> st.Estimate:
        """Estimate A - B of two arms, or (A - B) - (C - D) of four, paired by seed and task."""
        seeds = self.seeds(*arms)
        if not seeds:
            return st.Estimate(math.nan)
        a, b, *others = (self.scores(arm, measure, seeds) for arm in arms)
        differences = [left - right for left, right in zip(a, b, strict=True)]
        if others:
            differences = [x - (c - d) for x, c, d in zip(differences, *others, strict=True)]
        return st.estimate(differences)


def _evaluated(record: Record, study: Study) -> object:
    tasks = [record.splits[split].tasks for split in study.splits if split in record.splits]
    return record.evaluated, tasks, [record.tasks.get(split) for split in study.splits]


def _rates(record: Record, split: str) -> st.Floats:
    found = record.splits[split]
    return np.array(found.successes) / np.maximum(1, found.episodes)


def arm_rows(results: Results) -> list[Row]:
    """Return success of each arm: before, after, gain, by split, interquartile mean and area."""
    rows = []
    for arm in results.arms:
        before, final = results.scores(arm, "before"), results.scores(arm, "final")
        gains = st.run_scores(final) - st.run_scores(before)
        row = {
            "arm": f"`{arm}`",
            "seeds": str(len(results.seeds(arm))),
            "before": rate(st.estimate(before)),
            "after": rate(st.estimate(final)),
            "median gain (points)": points(st.Interval(float(np.median(gains)))),
        }
        if len(final) > 1:
            row |= {
                f"after, {s}": rate(st.estimate([part]))
                for s, part in zip(results.study.splits, final, strict=True)
            }
        row["after, interquartile mean"] = rate(st.bootstrap(st.interquartile_mean, final))
        row["area"] = rate(st.estimate(results.scores(arm, "area")))
        rows.append(row)
    return rows


def baseline_rows(results: Results) -> list[Row]:
    """Return the paired differences of every other arm from the baseline, and its times."""
    baseline, rows = results.study.analysis.baseline, []
    if baseline is None or baseline not in results.arms:
        return []
    for arm in results.arms:
        if arm == baseline:
            continue
        final = results.difference(arm, baseline, measure="final")
        finals = (results.scores(name, "final") for name in (arm, baseline))
        better = st.bootstrap(st.probability_of_improvement, *finals)
        rows.append(
            {
                "arm": f"`{arm}`",
                "pairs": str(final.seeds),
                "after (points)": points(final),
                "area (points)": points(results.difference(arm, baseline, measure="area")),
                "probability of improvement": rate(better),
            }
            | _compare_times(results, arm, baseline)
        )
    return rows


def _compare_times(results: Results, arm: str, baseline: str) -> Row:
    """Compare the times of iterations, and success in training over equal time."""
    ratio, difference = math.nan, st.Interval(math.nan)
    if seeds := results.seeds(arm, baseline):
        pairs = [results.of(name, seeds) for name in (arm, baseline)]
        curves = [np.array([r.training["success_rate"] for r in part], float) for part in pairs]
        seconds = np.array([[r.diagnostics["iteration_s"] for r in part] for part in pairs], float)
        ratio = float(np.median(seconds[0] / seconds[1]))
        difference = st.equal_time(curves, seconds)
    return {
        "time of an iteration": MISSING if math.isnan(ratio) else f"× {_fixed(ratio, '.2f')}",
        "training, equal time (points)": points(difference),
    }


def claim_rows(results: Results) -> list[Row]:
    """Return the claims with their differences and, if all their trials have finished, verdicts.

    p-values hold for a number of seeds that was fixed before the first trial: if one looks after
    each trial, the smallest is far too often below 0.05.
    """
    claims = results.study.analysis.claims
    found = [results.difference(*claim.arms, measure=claim.measure) for claim in claims]
    corrected = st.holm([difference.p_value for difference in found])
    return [
        {
            "claim": claim.text,
            "A": f"`{claim.a}` − `{claim.b}`" if claim.minus else f"`{claim.a}`",
            "B": " − ".join(f"`{arm}`" for arm in claim.minus or (claim.b,)),
            "measure": claim.measure,
            "pairs": str(difference.seeds),
            "A − B (points)": points(difference),
            "p": p_value(difference.p_value) if results.has_verdicts else "",
            "p, corrected": p_value(p) if results.has_verdicts else "",
            "verdict": f"**{st.verdict(difference, p)}**" if results.has_verdicts else "incomplete",
        }
        for claim, difference, p in zip(claims, found, corrected, strict=True)
    ]


def diagnostic_rows(results: Results) -> list[Row]:
    """Return one row per recorded diagnostic, and one column per arm: means over its seeds.

    See `Results.detailed_arms` for the arms.
    """
    names = dict.fromkeys(name for record in results.records for name in record.diagnostics)
    rows = [
        {"metric": f"`{name}`"}
        | {
            f"`{arm}`": _number(name, [r.diagnostics.get(name) for r in results.of(arm)])
            for arm in results.detailed_arms
        }
        for name in names
    ]
    for name in FIRST_AND_LAST:
        for label, part in (("first", slice(WINDOW)), ("last", slice(-WINDOW, None))):
            cells = {
                f"`{arm}`": _number(
                    name, [x for r in results.of(arm) for x in r.training[name][part]]
                )
                for arm in results.detailed_arms
            }
            rows.append({"metric": f"`{name}`, {label} {WINDOW} iterations"} | cells)
    return rows


def size_rows(results: Results) -> list[Row]:
    """Return the shares of steps by the size of their group at the last iteration.

    See `Results.detailed_arms` for the arms.
    """
    rows = []
    for arm in results.detailed_arms:
        sizes = pd.concat([pd.DataFrame(r.group_sizes, SIZE_LABELS) for r in results.of(arm)])
        means = sizes.groupby(level=0).mean()
        for depth in means:
            shares = {label: f"{_fixed(100 * means[depth][label])} %" for label in SIZE_LABELS}
            rows.append({"arm": f"`{arm}`", "k": str(depth)} | shares)
    return rows


def estimator_fidelity(
    results: Results, seeds: Sequence[int] | None = None
) -> list[EstimatorFidelity]:
    """Return the estimators whose fidelity is known, the highest fidelity first.

    Only arms that set nothing but the estimator. `seeds`: see `Results.scores`.
    """
    if (measured := results.fidelity) is None:
        return []
    truth, error = np.subtract(measured.q, measured.v), np.array(measured.error)
    columns = np.stack(list(measured.estimates.values()), axis=1)
    correlations = measure(columns, truth, error)["pearson_corrected"]
    known = dict(zip(measured.estimates, correlations.tolist(), strict=True))
    found = []
    for arm in results.arms:
        settings = results.study.arms[arm]
        correlation = known.get(str(settings.get("algorithm.estimator")), math.nan)
        if len(settings) == 1 and not math.isnan(correlation):
            success = st.estimate(results.scores(arm, "final", seeds))
            found.append(EstimatorFidelity(arm, correlation, success))
    return sorted(found, key=lambda estimator: estimator.correlation, reverse=True)


def fidelity_rows(results: Results) -> list[Row]:
    """Return the fidelity of estimators and their success."""
    return [
        {
            "arm": f"`{arm}`",
            "corrected correlation": _fixed(correlation, ".3f"),
            "after": rate(success),
        }
        for arm, correlation, success in estimator_fidelity(results)
    ]


def describe_fidelity(results: Results) -> str | None:
    """State the rank correlation between the fidelity of estimators and their success.

    None: there are too few estimators, too few seeds that all of them have, or no differences.
    """
    arms = [estimator.arm for estimator in estimator_fidelity(results)]
    seeds = results.seeds(*arms) if arms else []
    enough = results.is_complete or len(seeds) >= MIN_SEEDS
    if len(arms) < MIN_ESTIMATORS or not enough:
        return None
    found = estimator_fidelity(results, seeds)
    pairs = [(e.correlation, round(e.success.value, 9)) for e in found]
    value, low, high = st.rank_correlation(*zip(*pairs, strict=True))
    if math.isnan(value):
        return None
    bounds = "" if math.isnan(low) else f" ({_fixed(low, '.2f')} … {_fixed(high, '.2f')})"
    return (
        f"Rank correlation between the fidelity of {len(found)} estimators and their success "
        f"after training, with {len(seeds)} seeds of each: {_fixed(value, '.2f')}{bounds}."
    )


def describe_power(study: Study, records: Sequence[Record]) -> str:
    """State how many seeds per arm are needed to see the study's difference.

    The spread is that of the paired differences from the baseline, or of the claims' pairs of arms
    without one, over the finished trials; the assumed one if there are too few. The level is the
    strictest of Holm's correction, that of the claim with the smallest p-value.
    """
    results, analysis = Results(study, records), study.analysis
    pairs = list(dict.fromkeys((claim.a, claim.b) for claim in analysis.claims))
    if (baseline := analysis.baseline) is not None:
        pairs = [(arm, baseline) for arm in study.arms if arm != baseline]
    found = [results.difference(*pair, measure="final") for pair in pairs]
    known = [e for e in found if e.seeds >= MIN_PAIRS and not math.isnan(e.seed_variance)]
    seed_variance, task_variance = analysis.assumed_sd**2, 0.0
    source = "assumed in the study file"
    if known:
        seed_variance = float(np.mean([e.seed_variance for e in known]))
        task_variance = float(np.mean([e.task_variance for e in known]))
        source = f"from {sum(e.seeds for e in known)} pairs of finished trials"
    level = st.LEVEL / max(1, len(analysis.claims))
    seeds = st.seeds_needed(analysis.difference, seed_variance, task_variance, level)
    needed = (
        f"{seeds} seeds per arm are needed"
        if seeds
        else f"even {st.MAX_SEEDS:,} seeds per arm are not enough"
    )
    if seeds and any(claim.minus for claim in analysis.claims):
        needed += ", and about twice as many for a difference of two differences"
    return (
        f"To see a difference of {_fixed(100 * analysis.difference)} points with a probability of "
        f"{100 * st.POWER:.0f} % (two-sided, at {100 * level:.3g} %: {100 * st.LEVEL:.0f} % "
        f"divided by the number of claims), {needed}. Standard deviation of a paired difference "
        f"over seeds: {_fixed(100 * math.sqrt(seed_variance))} points ({source})."
    )


def _number(name: str, values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None and not math.isnan(value)]
    if not known:
        return MISSING
    mean, unit = float(np.mean(known)), metrics.find_metric(name)[0].unit
    if unit == "ratio":
        return f"{_fixed(100 * mean)} %"
    if unit == "s":
        return f"{round(mean, 9):.3g} s"
    return f"{mean:,.0f}" if mean >= 1000 else f"{round(mean, 9):.3g}"


def _fixed(value: float, form: str = ".1f") -> str:
    """Format a number; rounding first makes ties the same on every machine."""
    return format(round(value, 9) + 0.0, form)


def rate(found: st.Interval, sign: str = "", unit: str = " %") -> str:
    """Format a rate with its interval: ``57.3 % (49.0 … 65.1)``."""
    if math.isnan(found.value):
        return MISSING
    value, low, high = (_fixed(100 * x, f"{sign}.1f") for x in (found.value, found.low, found.high))
    return value + unit + ("" if math.isnan(found.low) else f" ({low} … {high})")


def points(difference: st.Interval) -> str:
    """Format a difference of rates in points with its interval: ``+3.2 (-1.0 … +7.4)``."""
    return rate(difference, sign="+", unit="")


def p_value(p: float) -> str:
    """Format a p-value."""
    if math.isnan(p):
        return MISSING
    return "< 0.001" if p < 0.001 else _fixed(p, ".3f")
