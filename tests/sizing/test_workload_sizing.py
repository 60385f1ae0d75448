"""The largest batch of a workload's configuration."""

from __future__ import annotations

import pytest

from tests.support.toy import Batched, Toy
from tuner.datasets.ratings import RatingData
from tuner.errors import InputError
from tuner.estimation.service import EstimationService
from tuner.search.configurations import complete
from tuner.sizing.workload_sizing import Predictor, batch_bound
from tuner.trial import GB, Device
from tuner.workloads.graphsage.workload import GraphSAGE
from tuner.workloads.lookup import find_workload
from tuner.workloads.task import TrainingTask

GPU = Device("", "cuda", 0, "a GPU", GB, GB, cores=0)


def test_one_sample_more_than_the_largest_batch_does_not_fit() -> None:
    task = TrainingTask(Batched(), None)
    config = complete({"accumulation": 4, "batch_size": 8}, task.workload.schema)
    predictor = Predictor(task, GPU, EstimationService(calibration=False))
    limit = predictor.estimate(config, 300).total_bytes
    found, guess = predictor.largest(config, limit)
    assert found.stopped_by == "memory"
    assert found.need_bytes == guess.total_bytes <= limit < found.beyond_bytes
    assert found.batch_size >= 300


def test_the_training_set_or_the_user_bounds_the_batch(ratings: RatingData) -> None:
    task = TrainingTask(GraphSAGE(), ratings)
    config = complete({}, task.workload.schema)
    whole, _ = Predictor(task, GPU).largest(config, GB)
    part, _ = Predictor(task, GPU).largest(config, GB, at_most=16)
    assert (whole.batch_size, whole.stopped_by) == (len(ratings.train), "the training set")
    assert (part.batch_size, part.stopped_by) == (16, "max_batch_size")


def test_trees_are_counted_as_samples(trees) -> None:
    assert batch_bound(TrainingTask(find_workload("gt-ssl"), trees)) == (8, "the training set")


def test_more_micro_batches_than_trees_are_refused(trees) -> None:
    task = TrainingTask(find_workload("gt-ssl"), trees)
    with pytest.raises(InputError, match="accumulation 9 is above 8, the training set: lower it"):
        Predictor(task, GPU).largest(complete({}, task.workload.schema), GB, accumulation=9)


def test_a_workload_without_a_batch_cannot_be_sized() -> None:
    with pytest.raises(InputError, match="workload toy: it has no batch whose size decides its memory"):
        batch_bound(TrainingTask(Toy(), None))
