"""`hgpo train --dry-run`: settings on standard output, resources on standard error."""

import importlib.util
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result
from ray.tune.search.variant_generator import generate_variants
from typer.testing import CliRunner

from env_wrappers.alfworld.games import TREE
from env_wrappers.webshop.generator import generate
from env_wrappers.webshop.nouns import SPACY_MODEL, make_noun_extractor
from env_wrappers.webshop.synthetic_products import CatalogueSpec
from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.cli.main import app
from hgpo_rllib.config import load_config
from hgpo_rllib.run import estimate
from hgpo_rllib.run.model_size import find_size
from tests.paths import ROOT

FOLDER = ROOT / "tuned_examples"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))
SCIENCEWORLD = importlib.util.find_spec("scienceworld") is not None
SCRIPTS = sorted(FOLDER.glob("*.py"))
HARDWARE = re.compile(r"^# Hardware: (\d+) x (\d+) GB GPUs?$", re.MULTILINE)
ON_GPUS = [path for path in EXAMPLES if HARDWARE.search(path.read_text())]


@pytest.fixture(scope="module", autouse=True)
def _data_of_the_examples(
    generated_games: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Run in a folder with the examples' data, with a stand-in for spaCy's model."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(generated_games, folder / "data/alfworld")
    by_scene = shutil.copytree(generated_games, folder / "data/alfworld_by_scene") / TREE
    for split, name in (("valid_seen", "dev"), ("valid_unseen", "test")):
        (by_scene / split).rename(by_scene / name)
    generate(folder / "data/webshop", CatalogueSpec(products=300))
    model = SimpleNamespace(meta={"version": "0"})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(sys.modules, SPACY_MODEL, SimpleNamespace(load=lambda **_: model))
        make_noun_extractor.cache_clear()
        yield
    make_noun_extractor.cache_clear()


def skip_without_packages(path: Path) -> None:
    if path.stem.startswith("scienceworld") and not SCIENCEWORLD:
        pytest.skip("the packages of requirements/scienceworld.txt are not installed")


@cache
def dry_run(path: Path, *overrides: str) -> Result:
    """Run `hgpo train --dry-run` in this process."""
    return CliRunner().invoke(app, ["train", str(path), *overrides, "--dry-run"])


def cells(text: str, start: str) -> list[list[str]]:
    """Return the cells of the table rows that begin with `start`."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    return [row for row in rows if row and row[0] == start]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_header_of_every_example(path: Path) -> None:
    """It begins with the command. GPU examples name their hardware; others use no GPU."""
    config, text = load_config(path, []), path.read_text()
    assert config.name == path.stem
    first = text.splitlines()[0]
    assert first.startswith("# ")
    assert f"hgpo train tuned_examples/{path.name}" in first
    head = text.partition("\nname:")[0]
    if path in ON_GPUS:
        assert len(HARDWARE.findall(head)) == 1
        assert "# Not run on a GPU." in head
    else:
        assert config.cluster.learner_gpus == config.policy_server.replica_gpus == 0
        assert "no GPU" in head or "fast check" in head


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example(path: Path, tmp_path: Path) -> None:
    """The printed settings load again, and the model's size is known."""
    skip_without_packages(path)
    done = dry_run(path)
    assert done.exit_code == 0, done.output
    printed = tmp_path / "printed.yaml"
    printed.write_text(done.stdout)
    assert load_config(printed, []) == load_config(path, [])
    assert "Resources requested from Ray" in done.stderr
    assert "parameters" in done.stderr
    assert "unknown" not in done.stderr


def test_there_is_no_other_kind_of_example() -> None:
    assert len(EXAMPLES) > 10
    files = {path for path in FOLDER.iterdir() if path.is_file()}
    assert files == {*EXAMPLES, *SCRIPTS}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_script(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The script documents its command, prints what a trial needs, and writes no files."""
    assert f"    .venv/bin/python tuned_examples/{path.name}\n" in path.read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), "--dry-run"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    assert "a trial needs 2 CPU (learner 1, policy server 1)" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_the_points_of_the_grid_in_python() -> None:
    """Tune's variants of `param_space` are valid configs that differ in alpha and K."""
    (path,) = SCRIPTS
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run = load_config(module.RUN_FILE, ["model.model_path=x", "env.data=x"])
    found = []
    for _, point in generate_variants(module.param_space(run).to_dict()):
        config = HGPOConfig().update_from_dict(point)
        config.validate()
        assert config.lr == run.learner.lr
        assert config.prompt_memory_length == 2
        found.append((config.weight_alpha, config.context_length))
    assert sorted(found) == [(alpha, k) for alpha in (0, 1, 2) for k in (2, 4)]


@pytest.mark.parametrize("path", ON_GPUS, ids=lambda path: path.stem)
def test_memory_of_examples_on_gpus(path: Path) -> None:
    """Examples use all GPUs of their header, within their memory, which is the estimate."""
    config = load_config(path, [])
    size = find_size(config)
    assert size is not None
    (hardware,) = HARDWARE.findall(path.read_text())
    needed, memory = estimate.gpu_sizes(config, size), int(hardware[1]) * 10**9
    assert len(needed) == int(hardware[0])
    assert max(*needed, estimate.smallest_gpu(config, size)) <= memory
    skip_without_packages(path)
    head = " ".join(path.read_text().replace("#", "").split())
    for name, process in (("learner", "learner"), ("replica", "policy server replica")):
        (written,) = re.findall(rf"{name} ([\d.]+) GiB", head)
        rows = cells(dry_run(path).stderr, process)
        (total,) = [float(row[3]) for row in rows if row[2] == "sum" and row[1] == "GPU"]
        digits = 1 if "." in written else 0
        assert f"{total:.{digits}f}" == written
    items = estimate.memory(config, size)
    shared = sum(item.size for item in items if item.where == "/dev/shm") / 2**30
    assert re.findall(r"(\d+) GiB of /dev/shm", head) in ([], [f"{shared:.0f}"])


def test_methods_differ_in_nothing_but_the_method() -> None:
    """Examples of other methods differ from HGPO's only in name and the method's settings."""
    for env in ("alfworld", "webshop"):
        for size in ("1.5b", "7b"):
            base = load_config(FOLDER / f"{env}_qwen{size}_hgpo.yaml", [])
            for method in ("hgpo_k4", "gigpo", "grpo", "rloo"):
                name = f"{env}_qwen{size}_{method}"
                config = load_config(FOLDER / f"{name}.yaml", [])
                assert config.name == name
                agent = base.agent
                if method == "hgpo_k4":
                    assert config.algorithm.context_length == 4
                    agent = agent.model_copy(update={"memory_length": 4})
                else:
                    assert config.algorithm.estimator == method
                same = {"name": name, "algorithm": config.algorithm, "agent": agent}
                assert config == base.model_copy(update=same)


@pytest.mark.parametrize("env", ["alfworld", "webshop"])
def test_ppo_plays_as_many_episodes_of_as_many_tasks(env: str) -> None:
    """PPO plays 128 tasks with one episode each, where the others have 16 groups of 8."""
    base = load_config(FOLDER / f"{env}_qwen1.5b_hgpo.yaml", [])
    config = load_config(FOLDER / f"{env}_qwen1.5b_ppo.yaml", [])
    assert (config.rollout.groups_per_iteration, config.rollout.group_size) == (128, 1)
    assert base.rollout.groups_per_iteration * base.rollout.group_size == 128
    assert (config.algorithm.estimator, config.learner.critic_lr) == ("ppo", 1e-5)
    assert config.algorithm.normalize == "mean_std", "released PPO normalizes on both"


@pytest.mark.parametrize(
    ("env", "normalize", "minibatch", "steps"),
    [("alfworld", "mean_std", 256, 50), ("webshop", "mean", 64, 30)],
)
def test_values_of_the_released_scripts(
    env: str, normalize: str, minibatch: int, steps: int
) -> None:
    """Examples have the values of the released scripts, common and per environment."""
    for size in ("1.5b", "7b"):
        config = load_config(FOLDER / f"{env}_qwen{size}_hgpo.yaml", [])
        assert config.algorithm.normalize == normalize
        assert config.learner.minibatch_size == minibatch
        assert config.env.max_steps == steps
        assert (config.agent.max_prompt_tokens, config.agent.max_response_tokens) == (4096, 512)
        assert (config.learner.lr, config.learner.kl_coeff) == (1e-6, 0.01)
        assert (config.rollout.temperature, config.evaluation.temperature) == (1.0, 0.4)
        assert (config.agent.memory_length, config.algorithm.weight_alpha) == (2, 1.0)


@pytest.mark.parametrize("size", ["1.5b", "7b"])
def test_normalization_on_webshop(size: str) -> None:
    """On WebShop, GiGPO only subtracts the mean, as HGPO does; GRPO divides by the deviation."""
    kinds = {
        method: load_config(FOLDER / f"webshop_qwen{size}_{method}.yaml", []).algorithm.normalize
        for method in ("hgpo", "hgpo_k4", "gigpo", "grpo")
    }
    assert kinds == {"hgpo": "mean", "hgpo_k4": "mean", "gigpo": "mean", "grpo": "mean_std"}


def test_a_model_that_is_not_known() -> None:
    """An unknown model gives exit code 0, one line about it, and no table of memory."""
    done = dry_run(FOLDER / "alfworld_pocket.yaml", "model.model_path=nobody/knows")
    assert done.exit_code == 0
    assert "memory: unknown; nobody/knows is neither" in done.stderr
    assert "Memory, estimated" not in done.stderr


def test_the_tables() -> None:
    """Totals include all replicas, and the note on GPUs appears only if GPUs are used."""
    path = FOLDER / "alfworld_qwen1.5b_hgpo.yaml"
    done = dry_run(path, "policy_server.num_replicas=3", "policy_server.replica_cpus=2")
    assert cells(done.stderr, "total") == [["total", "", "6", "4"]]
    assert cells(done.stderr, "policy server replica")[0][1:] == ["3", "2", "1"]
    assert cells(done.stderr, "main process")[0][1:] == ["1", "0", "0"]
    assert cells(done.stderr, "learner")[0][1:] == ["1", "0", "1"]
    assert "A replica takes 85% of its GPU" in done.stderr
    assert (
        "GiB that each GPU needs, with 2 for each process on it: 13.3, 13.3, 13.3, 48.1."
        in done.stderr
    )
    assert "of its GPU" not in dry_run(FOLDER / "alfworld_pocket.yaml").stderr


def test_memory_in_two_places() -> None:
    """Each sum covers one process in one place, either GPU or host."""
    done = dry_run(FOLDER / "alfworld_qwen1.5b_hgpo.yaml", "learner.offload_optimizer=true")
    _, *on_gpu, total, moments = cells(done.stderr, "learner")
    assert moments[1:] == ["host", "AdamW's two moments, float32", "11.5"]
    assert total[1:] == ["GPU", "sum", "34.6"]
    assert sum(float(row[3]) for row in on_gpu) == pytest.approx(34.6, abs=0.2)


def test_the_work_of_an_iteration() -> None:
    """The numbers equal those of docs/learner.md; seconds are given only for GPUs."""
    done = dry_run(FOLDER / "alfworld_qwen1.5b_hgpo.yaml")
    assert cells(done.stderr, "turns") == [["turns", "6,400", "6,400"]]
    assert cells(done.stderr, "tokens trained") == [["tokens trained", "29.5 M", "3.8 M"]]
    ((_, full, typical),) = cells(done.stderr, "seconds on H100")
    page = (ROOT / "docs/learner.md").read_text()
    assert f"| seconds on H100 | {full} | {typical} |" in page
    assert 1000 < float(full.replace(",", "")) < 2000
    assert 100 < float(typical) < 282
    for label in ("tokens trained", "FLOP of sampling", "FLOP of the update", "seconds on A100"):
        (row,) = cells(done.stderr, label)
        assert "| " + " | ".join(row).replace("e+", "e") + " |" in page
    webshop = dry_run(FOLDER / "webshop_qwen1.5b_hgpo.yaml").stderr
    assert len(cells(webshop, "tokens trained")[0]) == 2
    pocket = dry_run(FOLDER / "alfworld_pocket.yaml").stderr
    assert cells(pocket, "tokens sampled") == [["tokens sampled", "61,440"]]
    assert "seconds" not in pocket.lower()
    served_on_cpu = dry_run(FOLDER / "alfworld_qwen1.5b_hgpo.yaml", "policy_server.replica_gpus=0")
    assert "seconds" not in served_on_cpu.stderr.lower()
