"""User-defined environments: the documented example, and the errors for faulty ones."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import pytest

from hgpo_rllib import environments
from hgpo_rllib.agent import Memory, TextRenderer
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.environments import find_environment
from hgpo_rllib.environments.checks import REQUIRED_INFO, REQUIRED_STEP_INFO
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.run.inputs import check_inputs
from tests.unit.project import pages

PAGE = pages.ROOT / "docs" / "bring_your_own_environment.md"
FILES = {"python": "my_env.py", "jinja": "my_prompt.jinja", "yaml": "my_run.yaml"}
"""Of the first block in each language."""


def blocks(language: str) -> list[str]:
    """Return the page's blocks of code in a language."""
    return [b.text for b in pages.split(PAGE.read_text())[1] if b.language == language]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the working directory, which holds the files of the page."""
    for language, name in FILES.items():
        (tmp_path / name).write_text(blocks(language)[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(environments, "SPECS", dict(environments.SPECS))
    yield tmp_path
    sys.modules.pop("my_env", None)


@pytest.fixture
def config(folder: Path) -> RunConfig:
    return load_config(folder / "my_run.yaml", [])


def change(folder: Path, old: str, new: str) -> None:
    """Replace text in the environment of the page."""
    file = folder / "my_env.py"
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))


def check(config: RunConfig, split: str) -> None:
    """Run the checks that `hgpo` makes before it starts anything."""
    find_environment(config.env.env_id).check(config, split)


def error_of(config: RunConfig, split: str = "train") -> str:
    with pytest.raises(ConfigError) as error:
        check(config, split)
    assert "\n" not in str(error.value)
    assert str(PAGE.relative_to(pages.ROOT)) in str(error.value)
    return str(error.value)


def test_the_page_has_less_than_60_lines_of_code(folder: Path) -> None:
    lines = [line for name in FILES.values() for line in (folder / name).read_text().splitlines()]
    assert len([line for line in lines if line.strip()]) < 60


def test_the_environment_of_the_page(config: RunConfig) -> None:
    for split, tasks in (("train", 40), ("test", 20)):
        check(config, split)
        env = gymnasium.make(config.env.env_id, split=split, data=None, max_steps=8)
        assert env.get_wrapper_attr("num_tasks") == tasks
    _, info = env.reset(seed=1)
    way = next(action for action in info["admissible_actions"] if action.startswith("go to"))
    assert env.step("fly away")[4]["inadmissible"]
    for place in [way, *info["admissible_actions"]]:
        observation, reward, won, late, info = env.step(place)
        assert (reward, won, late, info["won"]) == (0.0, False, False, False)
        if "nothing" not in observation:
            break
    assert env.step(info["admissible_actions"][-1])[1:3] == (10.0, True)
    env.reset(seed=1)
    assert [env.step("wait")[3] for _ in range(8)] == [False] * 7 + [True]


def test_the_prompt_of_the_page(folder: Path, config: RunConfig) -> None:
    memory = Memory()
    memory.add("You see a shelf 1.", "go to shelf 1")
    text = TextRenderer(config.agent).message(
        goal="find a towel.",
        observation="On the shelf 1, you see nothing.",
        admissible_actions=["go to drawer 1", "wait"],
        step_count=1,
        history=memory.last(2),
    )
    assert text.splitlines()[:4] == [
        "Your task: find a towel.",
        "You saw: You see a shelf 1. You did: go to shelf 1",
        "You see: On the shelf 1, you see nothing.",
        "You can: go to drawer 1, wait",
    ]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda text: text.replace("goal", "aim"), "'aim' is undefined"),
        (lambda text: text.replace("endfor", "end"), "unknown tag 'end'"),
        (lambda text: text.replace("turn.action", "turn.deed"), "no attribute 'deed'"),
        (lambda text: text + "{{ '%d' | format(goal) }}", "TypeError: "),
        (None, "no prompt template 'my_prompt.jinja'"),
    ],
)
def test_faults_of_the_prompt_are_named(
    folder: Path, config: RunConfig, change: Callable[[str], str] | None, part: str
) -> None:
    file = folder / "my_prompt.jinja"
    if change:
        file.write_text(change(file.read_text()))
    else:
        file.unlink()
    message = error_of(config)
    assert message.startswith("agent.prompt: my_prompt.jinja: ")
    assert part in message


def test_a_fault_in_a_branch_of_later_steps(folder: Path, config: RunConfig) -> None:
    file = folder / "my_prompt.jinja"
    file.write_text(file.read_text() + "{% if step_count > 5 %}{{ mood }}{% endif %}")
    with pytest.raises(ConfigError, match=r"^agent.prompt: my_prompt.jinja: unknown variable mood"):
        check(config, "train")


def test_a_prompt_that_is_no_text_in_utf_8(folder: Path, config: RunConfig) -> None:
    (folder / "my_prompt.jinja").write_bytes("{{ goal }} é".encode("latin-1"))
    assert error_of(config).startswith("agent.prompt: my_prompt.jinja: UnicodeDecodeError: ")


def test_faults_of_the_follow_up_prompt_are_named(folder: Path, config: RunConfig) -> None:
    """Follow-up prompts have the variables of `agent.prompt`, except the history."""
    (folder / "next.jinja").write_text("{{ observation }} {{ history }}")
    agent = config.agent.model_copy(update={"follow_up_prompt": "next.jinja"})
    message = error_of(config.model_copy(update={"agent": agent}))
    assert message.startswith("agent.follow_up_prompt: next.jinja: ")
    assert "'history' is undefined" in message


def test_a_model_has_to_be_named(config: RunConfig) -> None:
    with pytest.raises(ConfigError, match=r"model\.model_path: there is no pocket model for my"):
        check_inputs(config)


@pytest.mark.parametrize(
    ("estimator", "refused"),
    [
        ("hcapo", r"model\.model_path: "),  # needs no oracle, so the next check fails
        ("gear", "algorithm.estimator=gear or sdar tells a teacher the oracle's plan, and my_env:"),
        ("sdar", "my_env:Lost-v0 has no oracle: choose another estimator$"),
    ],
)
def test_a_teacher_with_a_plan_needs_an_oracle(
    config: RunConfig, estimator: str, refused: str
) -> None:
    algorithm = config.algorithm.model_copy(update={"estimator": estimator})
    with pytest.raises(ConfigError, match=refused):
        check_inputs(config.model_copy(update={"algorithm": algorithm}))


@pytest.mark.parametrize("key", [*REQUIRED_INFO, *REQUIRED_STEP_INFO])
def test_what_an_info_lacks_is_named(folder: Path, config: RunConfig, key: str) -> None:
    code = f"""

info = Lost.info
Lost.info = lambda *a, **k: {{n: v for n, v in info(*a, **k).items() if n != {key!r}}}
"""
    change(folder, "\n\ngymnasium.register", f"{code}\n\ngymnasium.register")
    use = (REQUIRED_INFO | REQUIRED_STEP_INFO)[key][1]
    after = "step('go to " if key in REQUIRED_STEP_INFO else "reset(seed=0)"
    message = error_of(config)
    assert f"the info of {after}" in message
    assert f"has no {key!r}: {use}" in message


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("self.num_tasks, ", "self.tasks_, ", "it has no num_tasks"),
        ('return f"You see a', 'return 0, f"You see a', "reset(seed=0) must return 2 values"),
        (
            "rng = random.Random(self.task)",
            "self.resets = getattr(self, 'resets', 0) + 1; rng = random.Random(self.resets)",
            "another task",
        ),
        ('if offered else "Nothing happens."', "and 7", "must be text, not a int"),
        ('"won": won', '"won": int(won)', "'won' in the info of reset(seed=0) is a int"),
        ("offered = action in self.actions()", "offered = self.no", "step('go to "),
        ("(self, split, data, max_steps)", "(self, split, max_steps)", "cannot be made with"),
        ('"admissible_actions": self.actions()', '"admissible_actions": []', "is empty"),
        ('f"go to {place}"', 'f"Go to {place}"', "has 'Go to "),
    ],
)
def test_faults_are_named(folder: Path, config: RunConfig, old: str, new: str, part: str) -> None:
    change(folder, old, new)
    message = error_of(config)
    assert part in message
    assert message.startswith("env.env_id: my_env:Lost-v0, split 'train': ")


@pytest.mark.parametrize(
    ("option", "setting"),
    [("data", "env.data"), ("max_steps", "env.max_steps"), ("split", "env.train_split and")],
)
def test_options_that_are_settings_of_their_own(
    config: RunConfig, option: str, setting: str
) -> None:
    """Options that would override a setting are rejected."""
    env = config.env.model_copy(update={"options": {option: 3}})
    with pytest.raises(ConfigError, match=rf"env\.options\.{option}: .* see {setting}"):
        check(config.model_copy(update={"env": env}), "train")


def test_states_that_it_does_not_report(folder: Path, config: RunConfig) -> None:
    algorithm = config.algorithm.model_copy(update={"anchor": "state"})
    config = config.model_copy(update={"algorithm": algorithm})
    assert "the info of reset(seed=0) has no 'state_hash'" in error_of(config)
    change(folder, '"won": won', '"won": won, "state_hash": self.here')
    sys.modules.pop("my_env")
    check(config, "train")
    change(folder, '"state_hash": self.here', '"state_hash": [self.here]')
    sys.modules.pop("my_env")
    assert "'state_hash' in the info of reset(seed=0) is a list" in error_of(config)
    change(folder, '"state_hash": [self.here]', '"state_hash": (1, [self.here])')
    sys.modules.pop("my_env")
    assert "'state_hash' in the info of reset(seed=0): unhashable type: 'list'" in error_of(config)


def test_a_split_named_like_the_total(config: RunConfig) -> None:
    evaluation = config.evaluation.model_copy(update={"splits": ["all", "test"]})
    with pytest.raises(ConfigError, match="'all' is the name of all splits together"):
        check_inputs(config.model_copy(update={"evaluation": evaluation}))


@pytest.mark.parametrize(
    ("task_types", "part"),
    [
        (["candle"] * 40, "task 0 has the task_type"),
        (["candle", "cloth", "soapbar", "towel"], "task_types has 4 task types, of 40 tasks"),
    ],
)
def test_task_types_of_a_curriculum(
    folder: Path, config: RunConfig, task_types: list[str], part: str
) -> None:
    """Task types must equal those of the info, one for each task."""
    rollout = config.rollout.model_copy(update={"curriculum": True})
    config = config.model_copy(update={"rollout": rollout})
    change(folder, "self.num_tasks, self", f"self.task_types = {task_types}; self.num_tasks, self")
    assert part in error_of(config)


def test_a_second_reset_has_the_same_keys(folder: Path, config: RunConfig) -> None:
    change(
        folder,
        "        now = {",
        "        self.infos = getattr(self, 'infos', 0) + 1\n"
        "        if self.infos == 2:\n            return {}\n        now = {",
    )
    assert "the info of reset(seed=0) has no 'goal'" in error_of(config)


def test_a_split_that_there_is_not(config: RunConfig) -> None:
    assert "split 'valid_seen': it cannot be made with" in error_of(config, "valid_seen")


def test_a_module_that_is_not_found(config: RunConfig) -> None:
    settings = config.env.model_copy(update={"env_id": "no_such_module:Lost-v0"})
    message = error_of(config.model_copy(update={"env": settings}))
    assert "is its folder in PYTHONPATH?" in message
    settings = config.env.model_copy(update={"env_id": "my_env:Found-v0"})
    with pytest.raises(ConfigError, match=r"env\.env_id: .*Found.*"):
        check(config.model_copy(update={"env": settings}), "train")


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("import no_such_thing\n", "is its folder in PYTHONPATH?"),
        ("1 / 0\n", "my_env cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_cannot_be_imported(
    folder: Path, config: RunConfig, code: str, part: str
) -> None:
    (folder / "my_env.py").write_text(code)
    assert part in error_of(config)
