"""Tables of evaluations."""

from typing import Any

from hgpo_rllib.evaluation.show import results_table


def test_the_table_of_results() -> None:
    """Each row has its error and interval; the score is shown if it is not the success."""
    rate = {"mean": 0.5, "standard_error": 0.1, "low": 0.31, "high": 0.75}
    row: dict[str, Any] = {"games": 4, "success_rate": rate, "score": rate, "steps": 3.04}
    row |= {"invalid_rate": 0.25, "inadmissible_rate": 0.125}
    row |= {"prompt_tokens": 10.0, "response_tokens": 2.0}
    single = row | {"games": 1, "success_rate": dict.fromkeys(rate) | {"mean": 1.0}}
    protocol = {"agent": {"name": "hgpo"}, "env": {"id": "e", "split": "s"}, "protocol": "full"}

    def cells(**both: Any) -> list[list[str]]:
        results = {"by_task_type": {"x": single | both}, "all": row | both}
        columns = results_table({"protocol": protocol, "results": results}).columns
        return [[str(c.header), *(str(cell) for cell in c.cells)] for c in columns]

    expected = [
        ["tasks", "x", "all"],
        ["games", "1", "4"],
        ["success %", "100.0", "50.0 ± 10.0"],
        ["95 %", "n/a", "31.0 … 75.0"],
        ["steps", "3.0", "3.0"],
        ["invalid %", "25.0", "25.0"],
        ["inadm. %", "12.5", "12.5"],
        ["tokens", "10+2", "10+2"],
    ]
    assert cells() == expected
    score = ["score %", "60.0 ± 10.0", "60.0 ± 10.0"]
    assert cells(score=rate | {"mean": 0.6}) == [*expected[:4], score, *expected[4:]]
