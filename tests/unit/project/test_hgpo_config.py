"""Settings of an RLlib config: fields, ranges, and conversion from a run file."""

import re
from pathlib import Path
from typing import Any

import pytest
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from hgpo_rllib.algorithm import FLAT_SECTIONS, HGPOConfig
from hgpo_rllib.config import load_config, parse_config
from hgpo_rllib.environments import with_absolute_paths
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.settings.algorithm import AlgorithmSettings
from hgpo_rllib.settings.learner import LearnerSettings
from tests.paths import ROOT

EXAMPLES = sorted((ROOT / "tuned_examples").glob("*.yaml"))
FLAT_NAMES = [name for section in FLAT_SECTIONS.values() for name in section.model_fields]


def test_flat_names_are_unique() -> None:
    """Field names are unique across sections."""
    assert len(FLAT_NAMES) == len(set(FLAT_NAMES))


def test_only_intended_names_are_rllib_ones() -> None:
    """Only fields with the same meaning as in RLlib share a name with an RLlib setting."""
    rllib = AlgorithmConfig()
    shared = {name for name in FLAT_NAMES if hasattr(rllib, name)}
    assert shared == {"lr", "gamma", "grad_clip", "num_epochs", "minibatch_size"}


def test_defaults_are_those_of_the_sections() -> None:
    """The builder's defaults are those of the sections."""
    for section in FLAT_SECTIONS.values():
        assert HGPOConfig().settings(section) == section()


def test_training_sets_fields() -> None:
    """`training` sets fields of sections and RLlib's own settings in one call."""
    config = HGPOConfig().training(weight_alpha=0.5, lr=1e-4, train_batch_size=77)
    assert config.settings(AlgorithmSettings) == AlgorithmSettings(weight_alpha=0.5)
    assert config.settings(LearnerSettings) == LearnerSettings(lr=1e-4)
    assert config.train_batch_size == 77
    assert HGPOConfig().weight_alpha == 1.0


def test_training_refuses_unknown_names() -> None:
    """A misspelled field raises TypeError instead of setting a new attribute."""
    with pytest.raises(TypeError, match="weight_alfa"):
        HGPOConfig().training(weight_alfa=0.5)


@pytest.mark.parametrize(
    "change",
    [{"weight_alpha": -1.0}, {"gamma": 1.5}, {"group_size": 1}, {"normalize": "std"}],
    ids=lambda change: next(iter(change)),
)
def test_validate_refuses_what_a_run_file_may_not_hold(change: dict[str, Any]) -> None:
    """`validate` checks the same ranges as loading a run file."""
    HGPOConfig().training(model_path="x").validate()
    with pytest.raises(ValueError, match=next(iter(change))):
        HGPOConfig().training(model_path="x", **change).validate()


NEEDS_CRITIC = "needs a critic: set learner.critic=head or learner.critic=separate"
OF_TOKENS = "has advantages of tokens, not of roles: set algorithm.role_estimators={} or other"
OF_THE_ENGINE = (
    "learner: importance_cap and importance_mask compare the learner with the engine: set "
    "old_logp=recomputed (with behavior, the token ratio compares the two itself)"
)


@pytest.mark.parametrize(
    ("algorithm", "learner", "message"),
    [
        ({"estimator": "ppo"}, {}, f"algorithm.estimator=ppo {NEEDS_CRITIC}"),
        (
            {"role_estimators": {"planner": "ppo"}},
            {},
            f"algorithm.role_estimators={{planner: ppo}} {NEEDS_CRITIC}",
        ),
        (
            {},
            {"critic": "head"},
            "learner.critic=head has values that algorithm.estimator=hgpo does not read: set "
            "learner.critic=none or algorithm.estimator=ppo or ppo_tokens or vetta or hiper",
        ),
        (
            {"estimator": "ppo"},
            {"critic": "separate", "drop_zero_advantage": True},
            "learner: drop_zero_advantage leaves out steps that the critic learns from: set "
            "drop_zero_advantage=false with a critic",
        ),
        (
            {"estimator": "ppo"},
            {"critic": "head", "critic_layers": 2},
            "learner: critic_layers is for a critic with layers of its own: set critic=separate, "
            "or critic_layers=null",
        ),
        (
            {"estimator": "ppo_tokens", "role_estimators": {"planner": "grpo"}},
            {"critic": "head"},
            f"algorithm.role_estimators: ppo_tokens {OF_TOKENS} estimators",
        ),
        (
            {"estimator": "gear", "role_estimators": {"planner": "grpo"}},
            {},
            f"algorithm.role_estimators: gear {OF_TOKENS} estimators",
        ),
        (
            {"estimator": "grpo", "role_estimators": {"planner": "hcapo"}},
            {},
            "algorithm.role_estimators: hcapo reads a teacher, which only algorithm.estimator has: "
            "choose another estimator for the role",
        ),
        ({}, {"importance_cap": 2.0}, OF_THE_ENGINE),
        ({}, {"importance_mask": (0.5, 2.0)}, OF_THE_ENGINE),
        (
            {},
            {"importance_mask": (2.0, 0.5), "old_logp": "recomputed"},
            "learner: importance_mask must be [low, high] with low < high",
        ),
        (
            {},
            {"policy_loss": "cispo", "dual_clip": 3.0},
            "learner: dual_clip bounds the loss of PPO: set dual_clip=null with policy_loss=cispo",
        ),
    ],
)
def test_settings_that_do_not_fit_together(
    algorithm: dict[str, Any], learner: dict[str, Any], message: str
) -> None:
    """Conflicting settings raise the same error from a run file and from `validate`."""
    with pytest.raises(ConfigError) as error:
        parse_config({"algorithm": algorithm, "learner": learner})
    assert str(error.value) == message
    config = HGPOConfig().training(model_path="x", **algorithm, **learner)
    with pytest.raises(ValueError, match=re.escape(message.removeprefix("learner: "))):
        config.validate()


def test_groups_of_one_name_the_estimator_that_compares() -> None:
    """The error for groups of one names the comparing estimator, including that of a role."""
    algorithm = {"estimator": "reinforce", "role_estimators": {"planner": "grpo"}}
    with pytest.raises(ConfigError) as error:
        parse_config({"algorithm": algorithm, "rollout": {"group_size": 1}})
    assert str(error.value) == (
        "rollout.group_size=1 leaves algorithm.role_estimators={planner: grpo} nothing to compare "
        "an episode with: set rollout.group_size to 2 or more, or the estimator to ppo or "
        "ppo_tokens or vetta or hiper or reinforce"
    )


def test_a_teacher_and_estimators_of_roles() -> None:
    parse_config({"algorithm": {"estimator": "hcapo", "role_estimators": {"planner": "grpo"}}})


def test_sharing_parameters() -> None:
    """`shard_parameters` requires several learners, in run files and in `validate`."""
    chosen, message = {"shard_parameters": True}, "num_learners of 2 or more, not 0"
    with pytest.raises(ConfigError, match=message):
        parse_config({"learner": chosen})
    config = HGPOConfig().training(model_path="x", **chosen)
    with pytest.raises(ConfigError, match=f"^learner.shard_parameters=true .*{message}$"):
        config.learners(num_learners=0).validate()


def test_validate_asks_for_a_model() -> None:
    """`validate` requires a model path, which has no default."""
    with pytest.raises(ValueError, match="model_path is not set"):
        HGPOConfig().validate()


def test_prompt_memory_is_tied_to_the_depth_of_groups() -> None:
    """`memory_length` defaults to `context_length`, unless it is set, even to 0."""
    config = HGPOConfig().training(context_length=4)
    assert config.prompt_memory_length == 4
    assert config.training(memory_length=0).prompt_memory_length == 0


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths become absolute for the actors; names of hub models and templates do not change."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    paths = ["model.model_path=model", "env.data=games", "agent.prompt=mine.jinja"]
    config = HGPOConfig.from_run_config(load_config(None, paths))
    assert config.model_path == str(tmp_path / "model")
    assert config.env_config["data"] == str(tmp_path / "games")
    assert config.prompt == str(tmp_path / "mine.jinja")
    monkeypatch.setenv("HOME", str(tmp_path))
    config = HGPOConfig.from_run_config(load_config(None, ["env.data=~/games"]))
    assert config.env_config["data"] == str(tmp_path / "games")
    named = ["model.model_path=org/model", "agent.prompt=alfworld_full"]
    config = HGPOConfig.from_run_config(load_config(None, named))
    assert (config.model_path, config.prompt) == ("org/model", "alfworld_full")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_run_files_reach_the_algorithm(path: Path) -> None:
    """Every field of every section of an example is passed to the algorithm's config."""
    data = [] if path.stem == "mixture_pocket" else ["env.data=/games"]
    run = with_absolute_paths(load_config(path, ["model.model_path=x", "seed=5", *data]))
    config = HGPOConfig.from_run_config(run)
    sections = {type(section): section for _, section in run}
    for section in FLAT_SECTIONS.values():
        assert config.settings(section) == sections[section]
    assert config.env == run.env.env_id
    assert config.env_config["data"] == run.env.data
    assert config.env_config["max_steps"] == run.env.max_steps
    assert config.env_config.items() >= run.env.options.items()
    assert config.eval_episodes == run.evaluation.episodes
    assert config.eval_temperature == run.evaluation.temperature
    assert config.seed == 5
    config.validate()
