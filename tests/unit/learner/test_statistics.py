"""Running means and maxima of an update."""

import numpy as np
import pytest
import torch

from hgpo_rllib.learner.statistics import Statistics


class TestStatistics:
    """Metrics are reduced as declared: to a mean, a maximum, or a sum of parts."""

    def test_means_and_maxima(self) -> None:
        """Means are over all tokens that have a value; maxima are over all values."""
        numbers = Statistics()
        for values in ([1.0, 2.0, 3.0], [10.0], []):
            numbers.add("entropy", torch.tensor(values, requires_grad=True))
            numbers.add("ratio_max", torch.tensor(values))
        numbers.add("clip_fraction", torch.tensor([True, False]))
        assert numbers.values() == {"entropy": 4.0, "clip_fraction": 0.5, "ratio_max": 10.0}
        assert Statistics().values() == {}

    def test_parts_make_a_mini_batch(self) -> None:
        """Parts of a mini-batch are added, and mini-batches are averaged; maxima are over all."""
        update = Statistics()
        for parts in ([1.0, 2.0], [5.0]):
            batch = Statistics()
            for part in parts:
                batch.add("loss", torch.tensor(part))
                batch.add("ratio_max", torch.tensor([part]))
            assert batch.values()["loss"] == sum(parts)
            update.merge(batch)
        assert update.values() == {"loss": 4.0, "ratio_max": 5.0}

    def test_learners_have_parts_of_a_mini_batch(self) -> None:
        """The losses of several learners' parts are added, not averaged."""
        learners = [Statistics(), Statistics()]
        for learner, value in zip(learners, (1.0, 2.0), strict=True):
            learner.add("loss", torch.tensor(value))
            learner.add("entropy", torch.tensor([value]))
        whole = Statistics.from_parts([learner.cpu() for learner in learners])
        assert whole.values() == {"loss": 3.0, "entropy": 1.5}

    def test_no_number_stays_no_number(self) -> None:
        """NaN is kept in means and maxima, wherever it occurs."""
        for values in ([float("nan"), 1.0], [1.0, float("nan")]):
            numbers = Statistics()
            for value in values:
                numbers.add("entropy", torch.tensor([value]))
                numbers.add("ratio_max", torch.tensor([value]))
            unknown = {"entropy": np.nan, "ratio_max": np.nan}
            assert numbers.values() == pytest.approx(unknown, nan_ok=True)

    def test_an_undeclared_metric_is_an_error(self) -> None:
        with pytest.raises(KeyError):
            Statistics().add("no_such", torch.zeros(1))
