"""Arguments of `hgpo evaluate`, and the errors for invalid ones."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from hgpo_rllib.config import load_config, save_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.request import make_request, settings_of, split_words
from hgpo_rllib.policy_server import openai_server
from tests.unit.cli.command import assert_refused

NOTHING: dict[str, Any] = {"agent": "random"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], (None, [])),
        (["runs/a"], ("runs/a", [])),
        (["runs/a", "env.max_steps=3"], ("runs/a", ["env.max_steps=3"])),
        (["env.max_steps=3", "seed=1"], (None, ["env.max_steps=3", "seed=1"])),
        (["env.options.level2=true"], (None, ["env.options.level2=true"])),
        (["http://host/v1?a=b"], ("http://host/v1?a=b", [])),
        (["/data/a=b"], ("/data/a=b", [])),
    ],
)
def test_the_model_is_the_word_that_is_no_setting(words: list[str], expected: Any) -> None:
    assert split_words(words) == expected


@pytest.mark.parametrize(
    ("words", "changes", "part"),
    [
        ([], {"agent": "hgpo", "env": "alfworld"}, "--agent hgpo: give a MODEL"),
        (
            *([], {"agent": "magic", "env": "alfworld"}),
            "--agent magic: for hgpo/ALFWorld-v0 choose hgpo, vanilla, react, reflexion, random, "
            "oracle, human, explorer, planner",
        ),
        ([], {"agent": "first-hit", "env": "textcraft"}, "human, careful, wasteful"),
        ([], {}, "--env: give alfworld, webshop, textcraft or scienceworld"),
        ([], {"protocol": "all"}, "--protocol all: choose full or released"),
        (
            [],
            {"protocol": "released", "seeds": 2, "env": "alfworld"},
            "--seeds: --protocol released uses",
        ),
        (
            [],
            {"trials": 2, "env": "alfworld"},
            "--trials: only --agent reflexion has trials",
        ),
        ([], {"name": "x", "env": "alfworld"}, "--name: only for a model behind a URL"),
        (["no-model-here/x"], {"agent": "hgpo", "env": "alfworld"}, "no-model-here/x"),
        (
            ["runs/a"],
            {"env": "alfworld"},
            "runs/a is not a run directory, and --agent random uses no",
        ),
        (["http://u:p@host/"], {"agent": "hgpo", "env": "alfworld"}, "http://host/: give http://H"),
        (["http://host/v1?key=p"], {"agent": "hgpo", "env": "alfworld"}, "http://host/v1: give h"),
        (["http://127.0.0.1:9/v1"], {"agent": "hgpo", "env": "alfworld"}, "cannot list the models"),
        (["http://host:port/v1"], {"agent": "hgpo", "env": "alfworld"}, "http://HOST:PORT/v1"),
        (["http://[::1/v1"], {"agent": "hgpo", "env": "alfworld"}, "http://HOST:PORT/v1"),
        (["env.max_step=3"], {"env": "alfworld"}, "unknown config key env.max_step"),
        ([], {"env": "my:Env-v0", "agent": "random"}, "env.env_id"),
    ],
)
def test_refused(
    offline: None, generated_games: Path, words: list[str], changes: dict[str, Any], part: str
) -> None:
    """The error is one line that names the argument or its problem."""
    arguments = NOTHING | {"data": generated_games} | changes
    with pytest.raises(ConfigError, match=r"\A[^\n]*\Z") as refused:
        make_request(words, **arguments)
    assert part in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("evaluate", "--env", "alfworld"), ["--agent hgpo", "MODEL"]),
        (
            ("evaluate", "./none", "--env", "alfworld"),
            ["./none does not exist", "give a directory"],
        ),
        (("compare", ".", "nowhere"), ["is not an evaluation", "summary.json"]),
    ],
)
def test_the_command_refuses(tmp_path: Path, arguments: tuple[str, ...], named: list[str]) -> None:
    """The command exits with code 2, prints one line, and writes nothing."""
    assert_refused(tmp_path, arguments, named)


def test_a_damaged_checkpoint(tmp_path: Path) -> None:
    """A damaged checkpoint is rejected before anything starts."""
    save_config(load_config(None, []), tmp_path / "config.yaml")
    (tmp_path / "checkpoint").mkdir()
    for name in ("config.json", "model.safetensors", "manifest.json"):
        (tmp_path / "checkpoint" / name).write_text("damaged")
    with pytest.raises(ConfigError, match=r"checkpoint is damaged: manifest.json cannot be read"):
        settings_of(str(tmp_path), "alfworld", None, "hgpo", [])


def test_a_model_needs_the_device_of_the_installed_vllm(
    model_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(model_path, tmp_path / "model")
    (model / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(openai_server, "vllm_is_for_cpu", lambda: False)
    short = ["agent.max_prompt_tokens=40", "agent.max_response_tokens=8"]
    with pytest.raises(ConfigError, match=r"add policy_server.replica_gpus=1"):
        settings_of(f"{model}", "alfworld", None, "hgpo", short)
    settings_of(f"{model}", "alfworld", None, "hgpo", [*short, "policy_server.replica_gpus=1"])


def test_defaults(generated_games: Path) -> None:
    """Defaults are the environment's; a deterministic agent plays each game once."""
    arguments = NOTHING | {"data": generated_games, "env": "alfworld"}
    request = make_request(["env.max_steps=4"], **arguments)
    assert (request.split, request.seeds, request.model) == ("valid_seen", 3, None)
    assert request.config.env.max_steps == 4
    assert make_request([], **arguments | {"agent": "oracle"}).seeds == 1


def test_settings_of_a_run(tmp_path: Path) -> None:
    """A run's settings apply to its own environment; another one has its own step limit."""
    run = load_config(
        None,
        ["agent.prompt=alfworld_compact", "env.max_steps=20", "policy_server.num_replicas=3"],
    )
    save_config(run, tmp_path / "config.yaml")

    def settings(env: str | None, agent: str, *overrides: str) -> Any:
        found = settings_of(f"{tmp_path}", env, None, agent, list(overrides))
        return found.env.max_steps, found.agent.prompt, found.agent.memory_length

    assert settings(None, "random") == (20, "alfworld_compact", 2)
    assert settings("webshop", "random") == (15, "alfworld_compact", 2)
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        settings(None, "hgpo")
    config = settings_of(str(tmp_path), None, None, "random", [])
    assert config.policy_server.num_replicas == 1


@pytest.mark.parametrize(("learners", "transport"), [(2, "object_store"), (1, "ipc")])
def test_run_with_colocated_replicas(learners: int, transport: str, tmp_path: Path) -> None:
    """An evaluation has one replica, and no learner that shares its GPU or sends weights."""
    run = load_config(
        None,
        [
            f"cluster.num_learners={learners}",
            "cluster.learner_gpus=1",
            f"policy_server.num_replicas={learners}",
            "policy_server.replica_gpus=1",
            "policy_server.colocate=true",
            f"policy_server.weight_transport={transport}",
        ],
    )
    save_config(run, tmp_path / "config.yaml")
    server = settings_of(f"{tmp_path}", "alfworld", None, "random", []).policy_server
    assert (server.num_replicas, server.colocate) == (1, False)
    assert server.weight_transport == "object_store"


@pytest.mark.parametrize(
    ("env", "agent"), [("alfworld", "vanilla"), ("alfworld", "react"), ("webshop", "hgpo")]
)
def test_agents_without_subgoals_of_a_run_with_subgoals(
    env: str, agent: str, tmp_path: Path
) -> None:
    """The settings are accepted: the only error is the missing checkpoint."""
    run = load_config(Path("alfworld_pocket_hiper"), [])
    save_config(run, tmp_path / "config.yaml")
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        settings_of(f"{tmp_path}", env, None, agent, [])


def test_agents_of_a_url() -> None:
    """Prompts are the environment's, and the server is not contacted."""

    def settings(env: str, agent: str, *overrides: str) -> Any:
        found = settings_of("http://127.0.0.1:9", env, None, agent, list(overrides)).agent
        return found.prompt, found.memory_length, found.shorten_prompts

    assert settings("alfworld", "hgpo") == ("alfworld_full", 2, "beginning")
    assert settings("webshop", "vanilla") == ("webshop_full", 0, "beginning")
    assert settings("webshop", "react") == ("webshop_react", 1000, "memory")
    assert settings("alfworld", "react", "agent.memory_length=5")[1] == 5
    assert settings("scienceworld", "vanilla")[0] == "scienceworld_full"
    with pytest.raises(ConfigError, match="there are no prompts for hgpo/ScienceWorld-v0"):
        settings("scienceworld", "react")
