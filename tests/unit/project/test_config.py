"""Run files become settings: values, overrides, files that extend others, and errors."""

import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hgpo_rllib.advantages import EstimatorSettings
from hgpo_rllib.config import RunConfig, as_override, load_config, save_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.run_files import read_run_file
from hgpo_rllib.settings.algorithm import AlgorithmSettings
from hgpo_rllib.settings.learner import LearnerSettings


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """Return a small run file."""
    path = tmp_path / "run.yaml"
    path.write_text("name: small\nalgorithm:\n  gamma: 0.9\n  context_length: 3\n")
    return path


def message_of(path: Path, *overrides: str) -> str:
    """Return the one-line error of loading a run file."""
    with pytest.raises(ConfigError) as error:
        load_config(path, list(overrides))
    assert "\n" not in str(error.value)
    return str(error.value)


class TestLoad:
    def test_what_is_not_written_keeps_its_default(self, run_file: Path) -> None:
        """Fields missing in a run file keep their defaults, also in a section."""
        config = load_config(run_file, [])
        assert config.name == "small"
        assert config.algorithm == AlgorithmSettings(gamma=0.9, context_length=3)
        assert config.learner == LearnerSettings()

    def test_an_empty_file_is_all_defaults(self, tmp_path: Path) -> None:
        """An empty run file gives the default config."""
        (tmp_path / "empty.yaml").write_text("# nothing\n")
        assert load_config(tmp_path / "empty.yaml", []) == RunConfig()

    def test_overrides(self, run_file: Path) -> None:
        """Overrides are YAML, can add a section, and the last one takes precedence."""
        config = load_config(
            run_file,
            [
                "algorithm.gamma=0.5",
                "algorithm.gamma=0.6",
                "learner.lr=1e-3",
                "seed=7",
                "env.options.task_types=[look_at_obj_in_light]",
                "evaluation.splits=[valid_seen]",
                "model.model_path=a=b",
                "minutes=null",
            ],
        )
        assert (config.algorithm.gamma, config.algorithm.context_length) == (0.6, 3)
        assert (config.learner.lr, config.seed, config.minutes) == (1e-3, 7, None)
        assert config.env.options == {"task_types": ["look_at_obj_in_light"]}
        assert config.evaluation.splits == ["valid_seen"]
        assert config.model.model_path == "a=b"

    def test_a_whole_section_can_be_overridden(self, run_file: Path) -> None:
        """An override of a whole section replaces the file's section."""
        config = load_config(run_file, ["algorithm={weight_alpha: 2}"])
        assert config.algorithm == AlgorithmSettings(weight_alpha=2.0)

    def test_old_responses_get_importance_weights(self) -> None:
        """Old responses get importance weights, unless set otherwise or no response can be old."""

        def learner(*overrides: str) -> tuple[str, float | None]:
            found = load_config(None, ["rollout.schedule=asynchronous", *overrides]).learner
            return found.old_logp, found.importance_cap

        assert learner() == ("recomputed", 2.0)
        assert learner("learner.lr=1e-5") == ("recomputed", 2.0)
        assert learner("rollout.max_staleness=0") == ("behavior", None)
        assert learner("rollout.schedule=one_step_off") == ("behavior", None)
        assert learner("learner.importance_cap=null") == ("behavior", None)
        assert learner("learner.old_logp=recomputed") == ("recomputed", None)

    def test_a_level_of_importance_weights_needs_weights(self) -> None:
        """A level that is not read is refused."""
        level = "learner.importance_level=sequence"
        with pytest.raises(ConfigError, match="importance_level=sequence is that of"):
            load_config(None, [level])
        capped = load_config(
            None, [level, "learner.old_logp=recomputed", "learner.importance_cap=2"]
        )
        assert capped.learner.importance_level == "sequence"
        old = load_config(None, [level, "rollout.schedule=asynchronous"]).learner
        assert (old.importance_level, old.importance_cap) == ("sequence", 2.0)

    def test_a_task_type_named_twice(self) -> None:
        twice = "games.task_types=[look_at_obj_in_light, look_at_obj_in_light]"
        with pytest.raises(ConfigError, match="look_at_obj_in_light is named twice"):
            load_config(None, [twice])

    @pytest.mark.parametrize(
        "change",
        [
            "cluster.num_env_runners=2",
            "algorithm.anchor=state",
            "agent.constrain_actions=true",
        ],
    )
    def test_settings_that_the_gateway_does_not_support(self, change: str) -> None:
        """Settings that a gateway does not support raise an error, and are valid without one."""
        name = change.partition("=")[0]
        with pytest.raises(ConfigError, match=rf"rollout.gateway_port.*{name}="):
            load_config(None, ["rollout.gateway_port=8100", change])
        assert load_config(None, [change]).rollout.gateway_port is None
        playing = load_config(None, ["rollout.gateway_port=8100"]).without_learners()
        assert playing.rollout.gateway_port is None

    def test_prompt_memory_is_tied_to_the_depth_of_groups(self, run_file: Path) -> None:
        """`memory_length` defaults to `context_length`, and can be set separately."""
        assert load_config(run_file, []).agent.memory_length == 3
        both = ["algorithm.context_length=4", "agent.memory_length=0"]
        assert load_config(run_file, both).agent.memory_length == 0

    def test_estimators_have_the_defaults_of_their_package(self) -> None:
        """Estimator settings have the defaults of their package, and all fields are passed on."""
        assert AlgorithmSettings().estimator_settings() == EstimatorSettings()
        changed = EstimatorSettings(
            4, 2.0, "mean", "released", 0.5, 0.9, 0.8, 0.7, 2.0, 0.25, 0.2, 0.3
        )
        defaults = asdict(EstimatorSettings())
        assert all(value != defaults[name] for name, value in asdict(changed).items())
        settings = AlgorithmSettings(**asdict(changed))
        assert settings.estimator_settings() == changed


class TestExtends:
    """`extends` names a base run file, whose settings apply unless this file sets them."""

    def test_sections_merge_key_by_key(self, run_file: Path) -> None:
        """Sections merge by key along a chain of files, lists are replaced, overrides come last."""
        middle = run_file.with_name("middle.yaml")
        middle.write_text(
            "extends: run.yaml\nalgorithm: {gamma: 0.8}\n"
            "env: {options: {task_types: [a, b], keep: 1}}\nevaluation: {splits: [x, y]}\n"
        )
        last = run_file.with_name("last.yaml")
        last.write_text(
            "extends: middle.yaml\nname: last\nenv: {options: {task_types: [c]}}\n"
            "evaluation: {splits: [z]}\n"
        )
        config = load_config(last, ["learner.lr=1e-3"])
        assert (config.name, config.learner.lr) == ("last", 1e-3)
        assert config.algorithm == AlgorithmSettings(gamma=0.8, context_length=3)
        assert config.env.options == {"task_types": ["c"], "keep": 1}
        assert config.evaluation.splits == ["z"]
        assert load_config(middle, []).name == "small"

    def test_paths_are_those_of_the_file_that_extends(self, run_file: Path) -> None:
        """`extends` is relative to the file that contains it, not to the working directory."""
        (run_file.parent / "inner").mkdir()
        inner = run_file.parent / "inner" / "deep.yaml"
        inner.write_text("extends: ../run.yaml\n")
        assert load_config(inner, []) == load_config(run_file, [])

    def test_a_null_section_of_the_base_is_filled(self, run_file: Path) -> None:
        """A null section of the base file can be set by the extending file."""
        run_file.write_text("algorithm:\n")
        child = run_file.with_name("child.yaml")
        child.write_text("extends: run.yaml\nalgorithm: {gamma: 0.7}\n")
        assert load_config(child, []).algorithm.gamma == 0.7

    def test_files_that_extend_each_other(self, run_file: Path) -> None:
        """A cycle of one or two files raises a one-line error that shows the cycle."""
        other = run_file.with_name("other.yaml")
        run_file.write_text("extends: other.yaml\n")
        other.write_text("extends: ./run.yaml\n")
        message = message_of(run_file)
        assert message.startswith(f"run files extend each other: {run_file} -> {other} -> ")
        other.write_text("extends: other.yaml\n")
        assert message_of(run_file).endswith(f"{run_file} -> {other} -> {other}")

    def test_a_missing_base_is_named_with_its_child(self, run_file: Path) -> None:
        """The error for a missing base file names both files."""
        run_file.write_text("extends: no.yaml\n")
        base = run_file.with_name("no.yaml")
        assert message_of(run_file) == (
            f"cannot read the config {base}, which {run_file} extends: No such file or directory"
        )

    @pytest.mark.parametrize("value", ["3", "[run.yaml]", "null"])
    def test_extends_names_one_file(self, run_file: Path, value: str) -> None:
        """`extends` must name one file; other values are refused."""
        run_file.write_text(f"extends: {value}\n")
        assert message_of(run_file).startswith(f"{run_file}: extends must name one run file (got ")

    def test_errors_of_the_base_name_the_base(self, run_file: Path) -> None:
        """An error in the base file names the base file."""
        child = run_file.with_name("child.yaml")
        child.write_text("extends: run.yaml\n")
        run_file.write_text("a: [1\nb: 2\n")
        assert message_of(child).startswith(f"{run_file} is not YAML: ")

    def test_a_key_that_is_given_twice(self, run_file: Path) -> None:
        """Of two sections of the same name, PyYAML would use the last."""
        run_file.write_text("learner: {lr: 1.0e-3}\nseed: 1\nlearner: {}")
        message = message_of(run_file)
        assert message.startswith(f"{run_file} is not YAML: learner is given twice")
        run_file.write_text("learner: &a {lr: 1.0e-3}\nalgorithm: {gamma: 0.9, gamma: 0.8}")
        assert "gamma is given twice" in message_of(run_file)
        run_file.write_text("a: &a {lr: 1.0, seed: 2}\nb: {<<: *a, lr: 3.0}")
        assert read_run_file(run_file)["b"] == {"lr": 3.0, "seed": 2}

    def test_the_file_is_named(self, tmp_path: Path) -> None:
        """Also for a key that this version does not know; overrides have no file."""
        file = tmp_path / "old.yaml"
        file.write_text("learner: {rate: 1}")
        assert message_of(file).startswith(f"{file}: unknown config key learner.rate")


class TestErrors:
    def test_an_unknown_key_names_the_known_ones(self, run_file: Path) -> None:
        """An unknown key's error lists the available keys, of its section or of the top level."""
        message = message_of(run_file, "algorithm.gama=0.9")
        assert message.startswith("unknown config key algorithm.gama; available: ")
        assert message.partition(": ")[2].split(", ") == list(AlgorithmSettings.model_fields)
        message = message_of(run_file, "algorithms.gamma=0.9")
        assert message.startswith("unknown config key algorithms; available: name, output, ")

    @pytest.mark.parametrize(
        ("override", "expected"),
        [
            ("model.lora_rank=true", r"^model\.lora_rank: give a number, not true or false"),
            ("learner.critic_lr=false", r"^learner\.critic_lr: give a number, not true or false"),
            ("evaluation.splits=[a, b, a]", r"^evaluation\.splits: a is named twice: name it once"),
            ("games.task_types=[]", r"^games\.task_types: .*at least 1"),
            ("algorithm.gamma=high", r"^algorithm\.gamma: .*number.*got 'high'"),
            ("iterations=1.5", r"^iterations: .*integer.*got 1\.5"),
            ("iterations=null", r"^iterations: .*integer.*got None"),
            ("algorithm.gamma=1.5", r"^algorithm\.gamma: .*less than or equal to 1.*got 1\.5"),
            ("rollout.group_size=0", r"^rollout\.group_size: .*greater than or equal to 1"),
            ("rollout.group_size=1", r"^rollout\.group_size=1 leaves algorithm\.estimator=hgpo"),
            ("algorithm.normalize=std", r"^algorithm\.normalize: .*mean_std.*got 'std'"),
            ("algorithm.estimator=hgop", r"^algorithm\.estimator: unknown .*'hgop'; known: hgpo, "),
            (
                "algorithm.role_estimators={a: hgop}",
                r"^algorithm\.role_estimators: unknown .*'hgop'",
            ),
            ("seed=-1", r"^seed: .*greater than or equal to 0 \(got -1\)"),
            ("seed=4294967296", r"^seed: .*less than or equal to 4294967295"),
            ("games.seed=-1", r"^games\.seed: .*greater than or equal to 0"),
            ("warm_start.seed=-1", r"^warm_start\.seed: .*greater than or equal to 0"),
            ("warm_start.hidden_size=40", r"^warm_start\.hidden_size: .*multiple of 32"),
            ("learner.lr=.inf", r"^learner\.lr: .*finite number \(got inf\)"),
            ("learner.adam_betas=[0.9, 1]", r"^learner\.adam_betas\.1: .*less than 1"),
            ("learner.importance_mask=[-1, 2]", r"^learner\.importance_mask\.0: .*equal to 0"),
            ("evaluation.splits=[]", r"^evaluation\.splits: .*at least 1 item"),
            ("games.rooms=[bedroom, cellar]", r"^games\.rooms\.1: .*got 'cellar'"),
            ("algorithm=3", r"^algorithm: .*got 3"),
            ("name.x=3", "^name.x: name is not a section$"),
            ("seed", "^'seed' is not an override: write section.key=value$"),
            ("=3", "^'=3' is not an override"),
            ("seed=[1", "^seed: '\\[1' is not a YAML value$"),
            ("name=2026-02-30", "^name: '2026-02-30' is not a YAML value$"),
        ],
    )
    def test_a_wrong_value_names_its_key(
        self, run_file: Path, override: str, expected: str
    ) -> None:
        """The error contains the key, the expected value and the given value."""
        with pytest.raises(ConfigError, match=expected):
            load_config(run_file, [override])
        message_of(run_file, override)

    def test_files_that_are_no_config(self, tmp_path: Path) -> None:
        """A missing file, a directory, broken YAML and YAML without sections are refused."""
        path = tmp_path / "run.yaml"
        assert message_of(path) == f"cannot read the config {path}: No such file or directory"
        assert message_of(tmp_path).startswith(f"cannot read the config {tmp_path}: ")
        for content in (b"a: [1\nb: 2\n", b"\xff", b"name: 2026-02-30", b"a: " + b"[" * 5000):
            path.write_bytes(content)
            assert message_of(path).startswith(f"{path} is not YAML: ")
        path.write_text("- name\n")
        assert message_of(path).startswith(f"{path} must hold sections")
        loop = tmp_path / "loop.yaml"
        loop.symlink_to(loop)
        assert message_of(loop).startswith(f"cannot read the config {loop}: Too many")


def test_folders_in_the_home_directory(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    config = load_config(run_file, ["output=~/runs", "cache=~/data"])
    assert (config.output, config.cache) == ("/home/someone/runs", "/home/someone/data")


@given(st.text(st.characters(exclude_categories=())))
def test_values_of_any_text(value: str) -> None:
    """All characters can be passed as an override, including lone surrogates of file names."""
    config = load_config(None, [as_override("env.options.text", [value, 1e-5, None])])
    assert config.env.options["text"] == [value, 1e-5, None]


def test_largest_seed(run_file: Path) -> None:
    """NumPy and PyTorch accept the largest seed."""
    config = load_config(run_file, ["seed=4294967295"])
    np.random.seed(config.seed)
    torch.manual_seed(config.seed)


def test_infinite_bounds(run_file: Path) -> None:
    """Gradient clipping and the upper bound of importance weights can be infinite."""
    config = load_config(
        run_file,
        [
            "learner.grad_clip=.inf",
            "learner.old_logp=recomputed",
            "learner.importance_mask=[0.5, .inf]",
        ],
    )
    assert config.learner.grad_clip == math.inf
    assert config.learner.importance_mask == (0.5, math.inf)


def test_saved_settings_load_again(run_file: Path, tmp_path: Path) -> None:
    """A saved file contains every setting and loads as the same config."""
    overrides = ["learner.lr=3e-7", "env.options.task_types=[a, b]", "minutes=0.5"]
    config = load_config(run_file, overrides)
    save_config(config, tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml", []) == config
    saved = yaml.safe_load((tmp_path / "saved.yaml").read_text())
    assert saved.keys() == RunConfig.model_fields.keys()
    assert saved["learner"].keys() == LearnerSettings.model_fields.keys()


def test_every_field_is_documented() -> None:
    """Every field has a docstring, which is the setting's help text."""
    for name, field in RunConfig.model_fields.items():
        section = field.annotation
        if not hasattr(section, "model_fields"):
            assert field.description, name
            continue
        for key, inner in section.model_fields.items():
            assert inner.description, f"{name}.{key}"


class TestNames:
    """A bare name refers to a run file in tuned_examples/, from any working directory."""

    @pytest.fixture(autouse=True)
    def _elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_of_an_example(self) -> None:
        assert load_config(Path("alfworld_pocket_ppo"), []).algorithm.estimator == "ppo"

    def test_a_file_here_comes_first(self) -> None:
        Path("alfworld_pocket").write_text("name: mine\n")
        assert load_config(Path("alfworld_pocket"), []).name == "mine"

    @pytest.mark.parametrize("name", ["x/alfworld_pocket", "alfworld_pocket.yaml"])
    def test_paths_are_no_names(self, name: str) -> None:
        assert message_of(Path(name)).startswith(f"cannot read the config {name}: ")

    def test_an_unknown_name(self) -> None:
        message = message_of(Path("webshop_pockets"))
        assert "cannot read the config webshop_pockets: " in message
        assert "(close: webshop_pocket" in message
