"""Which tasks a curriculum draws."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_rllib.config import load_config
from hgpo_rllib.environments.checks import check_settings
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.rollout.curriculum import Curriculum
from hgpo_rllib.rollout.group import PlayedGroup
from hgpo_rllib.rollout.stream import GroupStream
from hgpo_rllib.rollout.trajectory import Trajectory
from tests.unit.rollout.episodes import trajectory
from tests.unit.rollout.test_replaced_groups import runner_of

TASK_TYPES = ["solved"] * 30 + ["between"] * 50 + ["hopeless"] * 20


def outcome(task_type: str, wins: int, size: int = 8) -> list[Trajectory]:
    """Return a group of which `wins` members win."""
    played = [trajectory("a", 0 if member < wins else 1) for member in range(size)]
    return [replace(one, info=one.info | {"task_type": task_type}) for one in played]


def shares(curriculum: Curriculum, draws: int = 4_000) -> dict[str, float]:
    """Draw tasks and return the share of each task type."""
    counts = Counter(TASK_TYPES[curriculum.task(number)] for number in range(draws))
    return {name: count / draws for name, count in counts.items()}


def learned(outcomes: Sequence[tuple[str, int]]) -> Curriculum:
    curriculum = Curriculum(TASK_TYPES, seed=3)
    for task_type, wins in outcomes:
        curriculum.update(outcome(task_type, wins))
    return curriculum


def test_all_tasks_have_the_same_chance_at_first() -> None:
    assert shares(learned([])) == pytest.approx(
        {"solved": 0.3, "between": 0.5, "hopeless": 0.2}, abs=0.03
    )


def test_task_types_that_always_or_never_succeed_are_drawn_less() -> None:
    """They have a tenth of the weight of a task type that succeeds half of the time."""
    known = [("solved", 8), ("hopeless", 0), ("between", 4)] * 60
    curriculum = learned(known)
    assert curriculum.rates == pytest.approx({"solved": 1, "hopeless": 0, "between": 0.5}, abs=0.01)
    assert shares(curriculum) == pytest.approx(
        {"solved": 3 / 55, "between": 50 / 55, "hopeless": 2 / 55}, abs=0.02
    )


@given(
    st.lists(st.tuples(st.sampled_from(sorted(set(TASK_TYPES))), st.integers(0, 8)), max_size=30)
)
def test_the_rates_determine_the_draws(outcomes: list[tuple[str, int]]) -> None:
    """A curriculum with restored rates draws the same tasks; rates stay between 0 and 1."""
    before, restored = learned(outcomes), Curriculum(TASK_TYPES, seed=3)
    restored.rates |= before.rates
    draws = [before.task(number) for number in range(20)]
    assert [restored.task(number) for number in range(20)] == draws
    restored.seed = 4
    assert [restored.task(number) for number in range(20)] != draws
    assert all(0 <= rate <= 1 for rate in before.rates.values())


def test_a_resumed_run_draws_the_same_tasks() -> None:
    """Rates learn from all groups, including replaced ones, and are restored with the state."""

    def tasks(rollouts: int, state: dict[str, Any] | None = None) -> tuple[list[str], dict]:
        with runner_of(max_replaced_groups=99) as runner:
            runner._tasks = Curriculum(TASK_TYPES, seed=3)

            async def play(number: int) -> PlayedGroup:
                task_type = TASK_TYPES[runner._tasks.task(number)]
                wins = {"solved": 8, "between": number % 9, "hopeless": 0}[task_type]
                played = [replace(t, group=task_type) for t in outcome(task_type, wins)]
                return PlayedGroup(played, Counter())

            runner._stream = GroupStream(play)
            runner.set_state(state or {})
            played = [runner.sample(num_groups=4).trajectories for _ in range(rollouts)]
            return [t.group for part in played for t in part], runner.get_state()

    whole, _ = tasks(6)
    first, state = tasks(2)
    assert state["task_type_rates"]["hopeless"] < 0.5 < state["task_type_rates"]["solved"]
    second, _ = tasks(4, state)
    assert first + second == whole


def test_lost_groups_change_nothing() -> None:
    curriculum = learned([])
    curriculum.update([])
    assert curriculum.rates == learned([]).rates


def test_task_types_of_a_mixture_belong_to_their_environment() -> None:
    """Names in `task_types` equal those in the info of a reset, with the environment's name."""
    small = {"env_id": "hgpo/TextCraft-v0", "options": {"max_commands": 4}}
    env = gymnasium.make(
        "hgpo/Mixture-v0", environments={"a": small, "b": small}, disable_env_checker=True
    ).unwrapped
    task_types = env.get_wrapper_attr("task_types")
    curriculum = Curriculum(task_types, seed=0)
    before = dict(curriculum.rates)
    task = len(task_types) - 1
    _, info = env.reset(seed=task)
    played = [replace(one, info=info) for one in outcome("any", 8)]
    curriculum.update(played)
    changed = {name for name, rate in curriculum.rates.items() if rate != before[name]}
    assert changed == {task_types[task]}
    assert task_types[task].startswith("b/depth ")
    env.close()


def test_an_environment_without_task_types_is_an_error() -> None:
    settings = [
        "env.env_id=hgpo/Gymnasium-v0",
        "env.options={name: FrozenLake-v1, actions: [a, b, c, d]}",
    ]
    check_settings(load_config(None, settings), "train").close()
    config = load_config(None, [*settings, "rollout.curriculum=true"])
    with pytest.raises(
        ConfigError, match=r"^rollout.curriculum: hgpo/Gymnasium-v0 has no task_types"
    ):
        check_settings(config, "train")


def test_rates_and_weights_by_hand() -> None:
    """A group moves the rate of its type by a tenth; the weight of a task is 4 p (1 - p)."""
    curriculum = learned([("solved", 8), ("solved", 6), ("hopeless", 0)])
    expected = {"solved": 0.57, "hopeless": 0.45, "between": 0.5}  # 0.55 + (0.75 - 0.55) / 10
    assert curriculum.rates == pytest.approx(expected)
    curriculum.rates |= {"solved": 0.9, "hopeless": 0.2}
    weights = {"solved": 30 * 0.36, "hopeless": 20 * 0.64, "between": 50}
    total = sum(weights.values())
    assert shares(curriculum) == pytest.approx(
        {name: weight / total for name, weight in weights.items()}, abs=0.02
    )
