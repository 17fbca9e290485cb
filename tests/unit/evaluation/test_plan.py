"""Which episodes a protocol plays."""

from collections import Counter

import numpy as np
import pytest

from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.plan import PARITY_SEEDS, Slot, census, parity


class TestCensus:
    def test_every_game_with_every_seed(self) -> None:
        plan = census(7, seeds=3, games=None)
        assert Counter(slot.task for slot in plan.slots) == dict.fromkeys(range(7), 3)
        assert {(slot.seed, slot.place) for slot in plan.slots} == {
            (seed, place) for seed in range(3) for place in range(7)
        }
        assert plan.seeds == [0, 1, 2]

    def test_not_in_the_order_of_names(self) -> None:
        """Which is one family after the other; all seeds have the same order."""
        plan = census(50, seeds=2, games=None)
        assert plan.tasks != sorted(plan.tasks)
        assert [s.task for s in plan.slots if s.seed == 1] == plan.tasks

    def test_a_part_begins_the_whole(self) -> None:
        """So that more games can be played without those before changing."""
        whole, part = census(50, 3, None), census(50, 3, 5)
        assert set(part.slots) < set(whole.slots)
        assert part.tasks == whole.tasks[:5]

    def test_more_games_than_there_are(self) -> None:
        with pytest.raises(ConfigError, match=r"--games 8: the split has 7"):
            census(7, 3, 8)


class TestParity:
    @pytest.mark.parametrize("by_worker", [True, False])
    def test_draws(self, by_worker: bool) -> None:
        """512 for each released seed, all named differently; 128 are the first of 512."""
        plan = parity(140, None, by_worker)
        assert plan.seeds == list(PARITY_SEEDS)
        assert Counter(slot.seed for slot in plan.slots) == dict.fromkeys(PARITY_SEEDS, 512)
        assert len({(slot.seed, slot.place) for slot in plan.slots}) == 3 * 512
        first = [slot for slot in plan.slots if slot.place < 128]
        assert list(parity(140, 128, by_worker).slots) == first

    def test_walks_of_128_environments(self) -> None:
        """As textworld draws: each shuffles the list with its seed, and goes along it."""
        tasks = {s.place: s.task for s in parity(140, None, by_worker=True).slots if s.seed == 456}
        for worker in (0, 127):
            games = np.arange(140)
            np.random.RandomState(456 + 1000 + worker).shuffle(games)
            assert [tasks[worker + 128 * turn] for turn in range(4)] == games[:4].tolist()

    def test_a_pass_meets_some_games_twice(self) -> None:
        """Some 84 different ones of 140 in 128 draws, by worker; all different otherwise."""
        for seed in PARITY_SEEDS:
            walks = [s.task for s in parity(140, 128, True).slots if s.seed == seed]
            assert 75 <= len(set(walks)) <= 93
            draws = [s.task for s in parity(500, 128, False).slots if s.seed == seed]
            assert len(set(draws)) == 128

    def test_fewer_tasks_than_environments(self) -> None:
        assert len(parity(5, 12, by_worker=False).slots) == 36
        assert Slot(123, 0, parity(5, 1, True).tasks[0]) in parity(5, 12, by_worker=True).slots
