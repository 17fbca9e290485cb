"""The order of tasks, and groups of episodes as trajectories and records."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from hgpo_rllib.advantages import ESTIMATORS
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.learner.batching import signal_columns, token_columns
from hgpo_rllib.rollout.records import episode_records
from hgpo_rllib.rollout.scoring import ScoredTrajectories, score, stale_rate
from hgpo_rllib.rollout.tasks import HELD_OUT_ORDER_SEED, TaskOrder
from hgpo_rllib.warmstart.tokenizer import train_tokenizer
from tests.unit.rollout.episodes import PLAYS, SETTINGS, group


class TestTaskOrder:
    @pytest.mark.parametrize("num_tasks", [1, 7, 40])
    def test_every_epoch_visits_every_task_once(self, num_tasks: int) -> None:
        order = TaskOrder(num_tasks, seed=3)
        taken = order.first(3 * num_tasks)
        for epoch in range(3):
            tasks = taken[epoch * num_tasks : (epoch + 1) * num_tasks]
            assert sorted(tasks) == list(range(num_tasks))

    def test_epochs_and_seeds_differ(self) -> None:
        """Each epoch and each seed has its own order, which is reproducible."""
        epochs = [TaskOrder(40, seed).first(80) for seed in (0, 1)]
        orders = [tuple(part) for taken in epochs for part in (taken[:40], taken[40:])]
        assert len({*orders, tuple(range(40))}) == 5
        assert TaskOrder(40, 1).first(80) == epochs[1]

    def test_the_order_of_held_out_tasks(self) -> None:
        """Evaluations of all versions play the same tasks."""
        tasks = [4, 6, 2, 7, 3, 5, 9, 0, 8, 1, 9, 1]
        assert TaskOrder(10, HELD_OUT_ORDER_SEED).first(12) == tasks

    def test_a_place_has_one_task(self) -> None:
        """The task at a place does not depend on which places were read before."""
        order = TaskOrder(7, seed=2)
        tasks = order.first(21)
        assert [TaskOrder(7, seed=2).task(place) for place in (20, 3, 9)] == [
            tasks[20],
            tasks[3],
            tasks[9],
        ]


@pytest.fixture
def scored() -> ScoredTrajectories:
    """Return one group, scored."""
    return score(group(), SETTINGS)


class TestScore:
    def test_anchors_are_the_observations_acted_on(self, scored: ScoredTrajectories) -> None:
        """The last observation of an episode, which has no action, is not an anchor."""
        names = {"room": 0, "desk": 1, "shelf": 2}
        seen = [["room", "desk", "shelf"], ["room"], ["room", "desk"]]
        assert scored.steps.anchor.tolist() == [names[o] for row in seen for o in row]
        assert scored.steps.trajectory.tolist() == [0, 0, 0, 1, 2, 2]
        assert scored.steps.time.tolist() == [0, 1, 2, 0, 0, 1]
        assert [t.member for t in scored.trajectories] == [0, 1, 2]

    def test_returns(self, scored: ScoredTrajectories) -> None:
        """Returns are discounted, and only the invalid step has the penalty."""
        returns = [part.tolist() for part in scored.split(scored.steps.step_return)]
        assert returns == [[2.5, 4.75, 10.0], [0.0], [-0.25, 0.0]]

    def test_agents_without_subgoals_pay_no_penalty_of_keeping(
        self, scored: ScoredTrajectories
    ) -> None:
        """Only steps whose response has the block of an action can keep a sub-goal."""
        steps = score(group(), SETTINGS.model_copy(update={"keep_penalty": 2.0})).steps
        np.testing.assert_array_equal(steps.step_return, scored.steps.step_return)

    def test_advantages(self, scored: ScoredTrajectories) -> None:
        """Advantages match a manual computation.

        (2.5, 0, -0.25) share the room; (4.75, 0) share the desk and the room before it.
        """
        room = 2.25 / 3
        expected = [[2.5 - room, 2.375, 0.0], [-room], [-0.25 - room, -2.375]]
        for got, values in zip(scored.split(scored.advantage), expected, strict=True):
            np.testing.assert_allclose(got, values, atol=1e-12)

    def test_groups_are_tasks_of_their_own(self) -> None:
        """The same observations in two groups are never compared."""
        both = score([*group("a"), *group("b")], SETTINGS)
        one = score(group(), SETTINGS).advantage
        np.testing.assert_array_equal(both.advantage, np.tile(one, 2))
        assert both.steps.task.tolist() == [0] * 6 + [1] * 6

    @pytest.mark.parametrize("name", ESTIMATORS)
    def test_the_estimator_of_the_settings(self, name: str) -> None:
        """`score` returns what the registered estimator returns with the section's settings."""
        settings = SETTINGS.model_copy(update={"estimator": name, "step_weight": 0.5})
        scored = score(group(), settings, teacher=np.full((6, 3), -1.0))
        expected = ESTIMATORS[name](scored.steps, settings.estimator_settings())
        np.testing.assert_array_equal(scored.advantage, expected)
        assert scored.advantage.any()

    def test_levels_have_the_settings_of_the_section(self) -> None:
        """The levels that are recorded are those that HGPO compares."""
        changes = {"context_length": 3, "weight_alpha": 2.0, "contexts": "released"}
        scored = score(group(), SETTINGS.model_copy(update=changes))
        assert [level.weight for level in scored.levels] == [4, 9, 16, 25]
        assert scored.levels[1].size.tolist() == [0, 2, 1, 0, 0, 2]
        assert scored.levels[1].advantage.tolist() == [0, 2.375, 0, 0, 0, -2.375]

    def test_log_probabilities_and_actions(self, scored: ScoredTrajectories) -> None:
        """A step's value is the mean over the tokens of its response."""
        numbers = np.array([0, 1, 2, 10, 20, 21])
        assert scored.steps.nll is not None
        np.testing.assert_array_equal(scored.steps.nll, numbers / 8)
        assert scored.steps.action is not None
        assert len(set(scored.steps.action)) == 6
        assert scored.steps.require("won").tolist() == [True] * 3 + [False] * 3
        assert scored.steps.anchor.tolist() == [0, 1, 2, 0, 0, 1]  # room, desk, shelf
        assert scored.steps.require("next_anchor").tolist() == [1, 2, 3, 1, 1, 1]

    @pytest.mark.parametrize("logp", [[], [-np.inf]])
    def test_an_agent_without_log_probabilities(self, logp: list[float]) -> None:
        """Only estimators that need log-probabilities fail; the error names the estimator."""
        trajectories = group()
        step = trajectories[0].steps[1]
        turn = replace(step.turn, behavior_logp=np.array(logp, np.float32))
        trajectories[0].steps[1] = replace(step, turn=turn)
        assert score(trajectories, SETTINGS).steps.nll is None
        with pytest.raises(ConfigError, match=r"^estimator gaca: .* log-probabilities .*nll$"):
            score(trajectories, SETTINGS.model_copy(update={"estimator": "gaca"}))

    def test_anchors_of_states(self) -> None:
        """The anchor is the hash of the state before the action, not after it."""
        trajectories = group()
        hashes = [{"desk": 8}, {"room": 8}, {"room": 9}]
        for played, states in zip(trajectories, hashes, strict=True):
            played.info["state_hash"] = states.get("room", 7)
            for step in played.steps:
                step.info["state_hash"] = states.get(step.observation, 7)
        scored = score(trajectories, SETTINGS.model_copy(update={"anchor": "state"}))
        names = {7: 0, 8: 1, 9: 2}
        seen = [[7, 8, 7], [8], [9, 7]]
        assert scored.steps.anchor.tolist() == [names[state] for row in seen for state in row]

    def test_anchors_of_states_need_an_environment_that_has_them(self) -> None:
        """The error names the missing `info['state_hash']`."""
        with pytest.raises(ValueError, match="reports info\\['state_hash'\\]"):
            score(group(), SETTINGS.model_copy(update={"anchor": "state"}))

    def test_columns_have_one_row_a_step(self, scored: ScoredTrajectories) -> None:
        """Tokens, log-probabilities and advantages of a step are in the same row."""
        columns = token_columns(scored.trajectories) | signal_columns(scored)
        assert columns["response_length"].tolist() == [1, 2, 3, 1, 1, 2]
        assert columns["prompt_length"].tolist() == [2, 3, 4, 2, 2, 3]
        for row, number in enumerate((0, 1, 2, 10, 20, 21)):
            length = columns["response_length"][row]
            assert set(columns["response_ids"][row, :length].tolist()) == {number}
            assert not columns["response_ids"][row, length:].any()
            assert set(columns["behavior_logp"][row, :length].tolist()) == {-number / 8}
            assert columns["prompt_ids"][row, :2].tolist() == [5, 6]
        assert columns["advantage"].tolist() == [1.75, 2.375, 0.0, -0.75, -1.0, -2.375]


def test_stale_rate() -> None:
    """A response that was continued under new weights counts as old as its first token."""
    assert stale_rate(group(), "w:1") == 6 / 6
    assert stale_rate(group(), "w:2") == 5 / 6


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer for which all prompt ids are single bytes."""
    return train_tokenizer(["put a mug in desk 1"], [], 300)


SIZES = np.array([[6, 3, 4, 2, 0, 5], [2, 1, 1, 1, 0, 1]])


class TestRecords:
    def test_one_record_a_member(
        self, scored: ScoredTrajectories, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        """Each member has one record with the fields of its episode."""
        records = list(episode_records(scored, SIZES, tokenizer, 4, "train"))
        assert [len(record.pop("steps")) for record in records] == [3, 1, 2]
        assert records == [
            {
                "format": "hgpo-episode-1",
                "iteration": 4,
                "split": "train",
                "group": "group",
                "member": member,
                "game": "games/7",
                "task_type": "pick",
                "goal": f"goal of {member}",
                "success": member == "member_0",
                "episode_return": 10.0 if member == "member_0" else 0.0,
            }
            for member in PLAYS
        ]

    def test_a_mixture_names_the_environment(
        self, scored: ScoredTrajectories, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        """It can have two of the same kind, with games of the same names."""
        first = scored.trajectories[0]
        mixed = replace(first, info=first.info | {"mixture": {"environment": "easy"}})
        others = replace(scored, trajectories=[mixed, *scored.trajectories[1:]])
        records = [*episode_records(others, SIZES, tokenizer, 4, "train")]
        assert records[0]["environment"] == "easy"
        assert "environment" not in records[1]

    def test_one_entry_a_step(
        self, scored: ScoredTrajectories, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        """The entry of a step has its prompt, response, action, reward and advantage."""
        first = next(episode_records(scored, SIZES, tokenizer, 4, "train"))
        assert first["steps"][1] == {
            "time": 1,
            "anchor": "desk",
            "prompt": tokenizer.decode([5, 6, 7]),
            "completion": "completion 1",
            "action": "action 1",
            "is_valid": False,
            "inadmissible": True,
            "reward": 0.0,
            "step_return": 4.75,
            "advantage": 2.375,
            "group_sizes": [3, 1],
            "response_tokens": 2,
            "response_ids": [1, 1],
            "behavior_logp": [-0.125, -0.125],
            "weight_version": "w:1",
            "weight_versions": [["w:0", 1], ["w:1", 1]],
            "prompt_truncated": True,
            "response_truncated": False,
            "request_s": 0.25,
            "env_s": 0.125,
        }
        assert [step["inadmissible"] for step in first["steps"]] == [False, True, False]
        for earlier, later in pairwise(first["steps"]):
            assert later["time"] == earlier["time"] + 1

    def test_responses_before_the_acting_one(
        self, scored: ScoredTrajectories, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        """A step of several roles has its role, and the same of the responses before it."""
        step = scored.trajectories[0].steps[1]
        planned = replace(step.turn, role="planner", completion="plan")
        turn = replace(step.turn, role="actor", preceding=(planned,))
        scored.trajectories[0].steps[1] = replace(step, turn=turn)
        first, entry, _ = next(episode_records(scored, SIZES, tokenizer, 4, "train"))["steps"]
        (before,) = entry["preceding"]
        assert (before["role"], before["completion"]) == ("planner", "plan")
        assert before["response_ids"] == entry["response_ids"]
        assert (entry["role"], entry["completion"]) == ("actor", "completion 1")
        assert first.keys().isdisjoint(("role", "preceding"))

    def test_records_are_plain_json(
        self, scored: ScoredTrajectories, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        """Records have no NumPy numbers, so a JSON round trip changes nothing."""
        for record in episode_records(scored, SIZES, tokenizer, 0, "valid_seen"):
            assert json.loads(json.dumps(record)) == record
