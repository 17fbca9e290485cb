"""The episodes that a protocol plays."""

from collections import Counter

import numpy as np
import pytest

from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.plan import RELEASED_SEEDS, PlannedEpisode, full_plan, released_plan


class TestFullPlan:
    def test_every_game_with_every_seed(self) -> None:
        plan = full_plan(7, seeds=3, games=None)
        assert Counter(episode.task for episode in plan.episodes) == dict.fromkeys(range(7), 3)
        assert {(episode.seed, episode.place) for episode in plan.episodes} == {
            (seed, place) for seed in range(3) for place in range(7)
        }
        assert list(plan.tasks) == [0, 1, 2]

    def test_not_in_the_order_of_names(self) -> None:
        """Games are shuffled, as names are sorted by task type; all seeds have the same order."""
        plan = full_plan(50, seeds=2, games=None)
        assert plan.tasks[0] != sorted(plan.tasks[0])
        assert [s.task for s in plan.episodes if s.seed == 1] == plan.tasks[0]

    def test_a_part_begins_the_whole(self) -> None:
        """A plan of fewer games is the beginning of the whole, so games can be added later."""
        whole, part = full_plan(50, 3, None), full_plan(50, 3, 5)
        assert set(part.episodes) < set(whole.episodes)
        assert part.tasks[0] == whole.tasks[0][:5]

    def test_more_games_than_there_are(self) -> None:
        with pytest.raises(ConfigError, match=r"--games 8: the split has 7"):
            full_plan(7, 3, 8)


class TestReleasedPlan:
    @pytest.mark.parametrize("by_worker", [True, False])
    def test_draws(self, by_worker: bool) -> None:
        """Each released seed has 512 different episodes, and 128 draws are the first of them."""
        plan = released_plan(140, None, by_worker)
        assert list(plan.tasks) == list(RELEASED_SEEDS)
        assert Counter(episode.seed for episode in plan.episodes) == dict.fromkeys(
            RELEASED_SEEDS, 512
        )
        assert len({(episode.seed, episode.place) for episode in plan.episodes}) == 3 * 512
        first = [episode for episode in plan.episodes if episode.place < 128]
        assert list(released_plan(140, 128, by_worker).episodes) == first

    def test_walks_of_128_environments(self) -> None:
        """Like textworld, each environment shuffles the games and plays them in order."""
        tasks = {
            s.place: s.task
            for s in released_plan(140, None, by_worker=True).episodes
            if s.seed == 456
        }
        for worker in (0, 127):
            games = np.arange(140)
            np.random.RandomState(456 + 1000 + worker).shuffle(games)
            assert [tasks[worker + 128 * turn] for turn in range(4)] == games[:4].tolist()

    def test_a_pass_meets_some_games_twice(self) -> None:
        """128 draws by worker have about 84 different games of 140; otherwise all are different."""
        for seed in RELEASED_SEEDS:
            walks = [s.task for s in released_plan(140, 128, True).episodes if s.seed == seed]
            assert 75 <= len(set(walks)) <= 93
            draws = [s.task for s in released_plan(500, 128, False).episodes if s.seed == seed]
            assert len(set(draws)) == 128

    def test_fewer_tasks_than_environments(self) -> None:
        assert len(released_plan(5, 12, by_worker=False).episodes) == 36
        assert (
            PlannedEpisode(123, 0, released_plan(5, 1, True).tasks[123][0])
            in released_plan(5, 12, by_worker=True).episodes
        )
