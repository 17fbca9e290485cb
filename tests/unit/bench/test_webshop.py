"""`hgpo bench webshop`: what it compares and prints; speed is no test's business."""

import json
import lzma
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from env_wrappers.errors import DataError
from env_wrappers.webshop.session import Session
from env_wrappers.webshop.shop import open_shop
from env_wrappers.webshop.tokens import analyze
from hgpo_rllib.bench import webshop as bench
from hgpo_rllib.bench import webshop_recordings
from hgpo_rllib.bench.webshop import Build, Report, Service, Speed, StoreWorkload, bench_webshop
from hgpo_rllib.bench.webshop_recordings import Agreement, compare_recordings
from hgpo_rllib.cli.main import app
from tests.unit.env_wrappers.webshop.webshop_store import SHIRT, write_store

SPEED = Speed(
    products=1000,
    goals=6910,
    construction_seconds=0.0125,
    steps=20_001,
    steps_per_second=20_500.4,
    environments=128,
    megabytes_added=5.46,
)
BUILD = Build(
    products=1_000_000,
    goals=7_000_000,
    catalogue_minutes=9.95,
    goals_minutes=0.72,
    peak_gigabytes=1.234,
)
SERVICE = Service(
    environments=64,
    steps_per_second=1_234.5,
    queries=998,
    median_milliseconds=7.77,
    p95_milliseconds=15.04,
    resident_gigabytes=0.987,
)
AGREED = [Agreement("episodes", recorded=70, same=70), Agreement("rewards", 2000, 2000)]
TOKENS, HITS, TRACES, REWARDS, NOUNS = (
    f"webshop_{name}.json.xz"
    for name in ("search_tokens", "search_hits", "traces", "rewards", "title_nouns")
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("store") / "data")


def _write(folder: Path, recordings: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in recordings.items():
        (folder / name).write_bytes(lzma.compress(json.dumps(content).encode()))
    return folder


def _record(data: Path) -> dict[str, Any]:
    """Record the store itself, as the original was recorded."""
    shop = open_shop(data, price_seed=webshop_recordings.PRICE_SEED, nouns="words")
    catalogue = shop.catalogue
    session = Session(shop)
    session.start(0)

    def seen(action: str, result: tuple[float, bool] | None) -> dict[str, Any]:
        names = {"text": "obs", "text_rich": "rich", "url": "url"}
        texts = {key: session.observation(mode) for mode, key in names.items()}
        step = texts | {"a": action, "av": session.available_actions()}
        return step if result is None else step | {"r": result[0], "done": result[1]}

    steps = [seen("reset", None)]
    for action in ("search[shirt]", f"click[{SHIRT.lower()}]", "click[nothing]", "click[buy now]"):
        steps.append(seen(action, session.step(action)))
    score = session.score
    assert score is not None
    episode = {"idx": 0, "goal": {"instruction_text": session.goal.instruction}, "steps": steps}
    hits = [catalogue[index].asin for index in catalogue.search("towel")]
    return {
        TOKENS: [["A", "Red shoes", analyze("Red shoes")], ["B", "", []]],
        HITS: [["towel", hits], ["unknown", []]],
        TRACES: {"about": "", "synth": [episode], "human": []},
        REWARDS: [[0, SHIRT, {}, score.reward, {}]],
        NOUNS: {"nouns": {product.title: list(shop.nouns(product.title)) for product in catalogue}},
    }


def test_what_is_the_same_agrees(data: Path, tmp_path: Path) -> None:
    recordings = _write(tmp_path, _record(data))
    assert compare_recordings(data, recordings) == [
        Agreement("terms of documents", 2, 2),
        Agreement("hits of queries", 2, 2),
        Agreement("episodes", 1, 1),
        Agreement("rewards", 1, 1),
    ]


def _other(container: Any, *path: Any) -> None:
    """Exchange what is at a path for something else."""
    *way, last = path
    for key in way:
        container = container[key]
    value = container[last]
    container[last] = [*value, "more"] if isinstance(value, list) else f"{value}!"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (TOKENS, lambda r: _other(r, 1, 2)),
        (HITS, lambda r: _other(r, 0, 1)),
        (TRACES, lambda r: _other(r, "synth", 0, "goal", "instruction_text")),
        (TRACES, lambda r: _other(r, "synth", 0, "steps", 0, "obs")),
        (TRACES, lambda r: _other(r, "synth", 0, "steps", 2, "rich")),
        (TRACES, lambda r: _other(r, "synth", 0, "steps", 4, "url")),
        (TRACES, lambda r: _other(r, "synth", 0, "steps", 3, "av", "clickables")),
        (TRACES, lambda r: r["synth"][0]["steps"][4].update(r=0.123)),
        (TRACES, lambda r: r["synth"][0]["steps"][1].update(done=True)),
        (REWARDS, lambda r: r[0].__setitem__(3, r[0][3] + 1e-8)),
    ],
)
def test_a_difference_anywhere_counts(
    data: Path, tmp_path: Path, name: str, change: Callable[[Any], None]
) -> None:
    recorded = _record(data)
    change(recorded[name])
    recordings = _write(tmp_path, {key: recorded[key] for key in (name, NOUNS)})
    (agreement,) = compare_recordings(data, recordings)
    assert agreement.same == agreement.recorded - 1


def test_recordings_that_cannot_be_used_are_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no recordings here; there should be webshop_search_tok"):
        compare_recordings(data, tmp_path)
    (tmp_path / HITS).write_bytes(b"[1, 2")
    with pytest.raises(DataError, match=f"{HITS} cannot be read .*: fetch it again"):
        compare_recordings(data, tmp_path)
    _write(tmp_path, {HITS: [["shirt"]]})
    with pytest.raises(DataError, match=f"{HITS} does not fit the products: "):
        compare_recordings(data, tmp_path)
    (tmp_path / HITS).unlink()
    _write(tmp_path, {REWARDS: []})
    with pytest.raises(DataError, match=f"^{tmp_path / NOUNS} cannot be read"):
        compare_recordings(data, tmp_path)
    _write(tmp_path, {REWARDS: [[0, "B0UNKNOWN", {}, 1.0, {}]], NOUNS: {"nouns": {}}})
    with pytest.raises(DataError, match=r"does not fit the products: KeyError\('B0UNK"):
        compare_recordings(data, tmp_path)


def test_one_environment_and_more(data: Path) -> None:
    """Here in this process: whether processes start is the next test's business."""
    open_shop(data)
    speed = bench.measure_speed(data, steps=300, environments=3)
    assert (speed.products, speed.goals) == (29, len(open_shop(data).goals))
    assert 300 <= speed.steps < 315
    assert speed.environments == 3
    assert speed.steps_per_second > 0
    assert speed.construction_seconds > 0


def test_a_generated_store_is_built_and_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SMALL", 60)
    report = bench_webshop(StoreWorkload(None, products=80, steps=5, environments=2))
    assert report.agreements == []
    assert report.speed.products == 60
    build, service = report.build, report.service
    assert build is not None
    assert service is not None
    assert build.products == 80
    assert build.goals > 80
    assert 0.02 < build.peak_gigabytes < 2
    assert 0 < build.catalogue_minutes < 1
    assert 0.02 < service.resident_gigabytes < 2
    assert (service.environments, service.queries > 100) == (64, True)
    assert 0 < service.median_milliseconds <= service.p95_milliseconds


def test_queries_are_all_different(data: Path) -> None:
    """A query that was put before would be answered from memory."""
    shop = open_shop(data)
    queries = bench._queries(shop.catalogue, shop.goals)
    assert len(set(queries)) == len(queries) > 20


@pytest.mark.parametrize("same", [2000, 1999])
def test_json_is_one_object_and_a_difference_fails(
    monkeypatch: pytest.MonkeyPatch, same: int
) -> None:
    """Exit code 1, with the same output."""
    report = Report([*AGREED, Agreement("more", 2000, same)], SPEED, BUILD, SERVICE)
    monkeypatch.setattr(bench, "bench_webshop", lambda workload: report)
    done = CliRunner().invoke(app, ["bench", "webshop", "--json"])
    assert done.exit_code == int(same != 2000)
    result = json.loads(done.stdout)
    assert {key: result[key] for key in asdict(report)} == asdict(report)


def test_options_and_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    workloads = []

    def stand_in(workload: StoreWorkload) -> Report:
        workloads.append(workload)
        return Report(AGREED, SPEED, BUILD, SERVICE)

    monkeypatch.setattr(bench, "bench_webshop", stand_in)
    options = ["--data", str(tmp_path), "--recordings", str(tmp_path / "r"), "--products", "5"]
    done = CliRunner().invoke(app, ["bench", "webshop", *options, "--steps", "7", "--envs", "9"])
    assert done.exit_code == 0
    assert workloads == [
        StoreWorkload(tmp_path, tmp_path / "r", products=5, steps=7, environments=9)
    ]
    for figure in ("6,910", "12 ms", "20,500", "MB for 128 more", "5.5", "9.9 min", "0.7 min"):
        assert figure in done.stdout
    for figure in ("1.23", "64 environments", "1,234", "7.8 ms", "15.0 ms", "0.99", "2,000"):
        assert figure in done.stdout


def test_only_what_was_measured_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "bench_webshop", lambda workload: Report([], SPEED, None, None))
    done = CliRunner().invoke(app, ["bench", "webshop"])
    assert done.exit_code == 0
    assert "6,910" in done.stdout
    assert "Recordings" not in done.stdout
    assert "large" not in done.stdout
