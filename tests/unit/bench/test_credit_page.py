"""docs/credit_assignment.md shows the recorded results."""

import re
from pathlib import Path

import pytest

from hgpo_rllib.bench import fidelity
from hgpo_rllib.bench.fidelity import load_result
from tests.paths import ROOT

RESULTS = sorted((ROOT / "docs" / "results" / "credit").glob("*.json"))


@pytest.mark.parametrize("file", RESULTS, ids=lambda path: path.stem)
def test_the_page_shows_the_recorded_results(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has the recorded correlations and differences; interval bounds are not checked."""
    assert file.stat().st_size < 100_000
    monkeypatch.setattr(fidelity, "RESAMPLES", 2)
    tables = fidelity.tables(load_result(file))
    page = (ROOT / "docs" / "credit_assignment.md").read_text()
    column = re.findall(r"bench credit docs/results/credit/(\w+)\.json", page).index(file.stem)
    table = page.partition("| estimator |")[2].partition("\n\n")[0]
    correlations = {
        estimator: cells.split(" | ")[column]
        for estimator, cells in re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)
    }
    for row in tables["correlation with the true advantage"]:
        assert values(correlations.pop(row["estimator"])) == [
            f"{row['pearson_corrected'].value:.3f}"
        ]
    assert not any(correlations.values()), "estimators without a value in the record"
    verdicts = re.findall(r"^\| .* (?:corrected|rank) correlation \| (.*) \|$", page, re.MULTILINE)
    differences = {row.pop("measure"): row for row in tables["differences of estimators"]}
    for measure in ("pearson_corrected", "spearman"):
        expected = [f"{interval.value:.3f}" for interval in differences[measure].values()]
        assert values(verdicts[2 * column + (measure == "spearman")]) == expected


def values(cells: str) -> list[str]:
    """Return the values before the intervals in a Markdown row with typographic minus signs."""
    return re.findall(r"(-?[0-9.]+) \[-?[0-9.]+, -?[0-9.]+\]", cells.replace("−", "-"))
