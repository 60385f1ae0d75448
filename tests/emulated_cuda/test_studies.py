"""Studies on emulated cards, from the command to the journal.

Kernels compute nothing, so metrics say nothing. A context takes the 500 MB that plans assume, unless a test says
otherwise.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulated_cuda.studies import Study, ended, rows, run, start
from tuner.trial import GB, MB

pytestmark = pytest.mark.emulated

EVERY_WORKLOAD = [
    {"workload": "graphsage", "name": "sage", "hidden_dim": 64},
    {"workload": "graphsage", "name": "sage-less", "hidden_dim": 64, "amp": 1, "gradient_checkpointing": 1},
    {"workload": "gt-ssl", "name": "ssl", "hidden_channels": 16},
    {"workload": "gt-ssl", "name": "ssl-less", "hidden_channels": 16, "amp": 1, "gradient_checkpointing": 1},
    {"workload": "kd-gat", "name": "gat", "hidden_channels": 16, "batch_size": 32, "optimize_batch_size": 0},
]
UNEQUAL = {"names": ["T4", "A100"], "sizes": [6000, 4000], "known": False}


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study of every workload on two cards that differ in model and size."""
    study = Study(tmp_path_factory.mktemp("unequal") / "study")
    run(study, *study.config(*EVERY_WORKLOAD), "--auto-memory", "--epochs", "1", **UNEQUAL)
    return study


def test_every_workload_is_completed_at_its_first_attempt(unequal: Study) -> None:
    assert {name: line["attempts"] for name, line in unequal.finished.items()} == {
        config["name"]: 1 for config in EVERY_WORKLOAD
    }


def test_every_card_trains_and_each_worker_uses_its_own_alone(unequal: Study) -> None:
    assert {line["device"] for line in unequal.attempts} == {"cuda:0", "cuda:1"}
    cards = [*unequal.contexts().values()]
    assert {0, 1} == set.union(*cards) and all(len(used) == 1 for used in cards)
    assert len(cards) == 4, "of each card a worker and one that measured a context, and none for the study itself"


def test_no_card_gives_more_than_its_budget_and_no_trial_takes_more_than_its_share(unequal: Study) -> None:
    for index, budget in enumerate(unequal.plan["budgets"]):
        assert unequal.most_shared_gb(f"cuda:{index}") <= budget / GB
    context = 500 * MB / GB  # a worker on another card than its trial's would find none there
    assert all(context < line["peak_memory_gb"] <= line["limit_gb"] for line in unequal.attempts)


def test_less_memory_is_taken_with_autocast_and_recomputation(unequal: Study) -> None:
    done = unequal.finished
    assert done["ssl-less"]["peak_memory_gb"] < done["ssl"]["peak_memory_gb"]
    assert done["sage-less"]["peak_memory_gb"] <= done["sage"]["peak_memory_gb"]


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Two trials with 240 MB beside the context, of which one needs more to train; two of three cards are visible."""
    study = Study(tmp_path_factory.mktemp("tight") / "study")
    large = {"name": "large-batch", "hidden_dim": 512, "num_layers": 2, "batch_size": 60_000}
    small = {"name": "small-batch", "hidden_dim": 512, "num_layers": 2, "batch_size": 64}
    share = ("--memory-gb", str((500 + 240) * MB / GB), "--backoff", "0")
    cards = {"sizes": [6000, 4000, 6000], "CUDA_VISIBLE_DEVICES": "GPU-3333,GPU-1111"}
    run(study, *study.config(large, small), *share, "--epochs", "1", **cards)
    return study


def test_trials_that_run_out_of_memory_are_completed_with_more(tight: Study) -> None:
    first, again = (
        {line["name"]: line for line in tight.attempts if line["attempts"] == attempt} for attempt in (1, 2)
    )
    assert {name: (line["status"], line["error"].partition(":")[0]) for name, line in first.items()} == {
        "large-batch": ("out_of_memory", "first step"),
        "small-batch": ("out_of_memory", "evaluation"),
    }
    for name, line in again.items():
        assert line["limit_gb"] >= 1.49 * first[name]["limit_gb"]
        assert first[name]["limit_gb"] < first[name]["peak_memory_gb"] <= line["limit_gb"]
        assert first[name]["limit_gb"] < line["peak_memory_gb"]
    assert tight.finished.keys() == first.keys()


def test_only_cards_that_are_visible_by_their_uuids_are_used(tight: Study) -> None:
    assert {line["device"] for line in tight.attempts} == {"cuda:0", "cuda:2"}
    assert set.union(*tight.contexts().values()) == {0, 2}


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> list[Study]:
    """Two studies at once on one card, whose contexts are larger than assumed and on which not all trials fit."""
    folder = tmp_path_factory.mktemp("crowded")
    studies = [Study(folder / "one"), Study(folder / "two")]
    options = ("--mode", "architecture", "--auto-memory", "--epochs", "1", "--backoff", "1")
    cards = {"sizes": [3200], "EMULATED_CONTEXT_MB": "900", "known": False}
    started = [
        start(studies[0], *options, "--limit", "3", **cards),
        start(studies[1], *options, "--limit", "2", "--max-workers", "1", **cards),
    ]
    for process in started:
        ended(process)
    return studies


def test_two_studies_on_one_card_are_both_completed(crowded: list[Study]) -> None:
    assert [len(study.finished) for study in crowded] == [3, 2]


def test_a_context_larger_than_assumed_is_measured_before_anything_starts(crowded: list[Study]) -> None:
    for study in crowded:
        assert not [line for line in study.attempts if line["phase"] == "start"]
        assert min(line["limit_gb"] for line in study.attempts) > 900 * MB / GB


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Students of a teacher that is kept on the card or not, in the study's own process, on cards that differ."""
    study = Study(tmp_path_factory.mktemp("taught") / "study")
    common = {"workload": "kd-gat", "batch_size": 32, "optimize_batch_size": 0, "use_kd": 1, "teacher_epochs": 1}
    students = [{**common, "name": "taught"}, {**common, "name": "offloaded", "offload_teacher_to_cpu": 1}]
    cards = {"names": ["T4", "A100"], "sizes": [6000, 5000]}
    run(study, *study.config(*students), "--in-process", "--auto-memory", "--epochs", "1", **cards)
    return study


def test_a_teacher_is_trained_first_and_takes_less_of_the_card_where_it_is_offloaded(taught: Study) -> None:
    (teacher,) = Study(taught.folder.with_name("study-classifier-teacher")).finished.values()
    done = taught.finished
    assert done["offloaded"]["peak_memory_gb"] <= done["taught"]["peak_memory_gb"] < teacher["peak_memory_gb"]


def test_a_study_in_its_own_process_counts_its_context_and_keeps_to_torchs_first_card(taught: Study) -> None:
    assert {line["device"] for line in taught.attempts} == {"cuda:1"}, "CUDA puts the A100 first"
    assert set.union(*taught.contexts().values()) == {1}
    assert all(0.5 < line["peak_memory_gb"] < 0.7 for line in taught.attempts)


def test_of_cards_that_are_visible_by_number_the_emptiest_is_used_and_segments_may_expand(
    tmp_path: Path,
) -> None:
    study = Study(tmp_path / "study")
    options = ("--expandable-segments", "--auto-memory", "--limit", "1", "--epochs", "1")
    said = run(study, *options, sizes=[8000, 4000, 6000], CUDA_VISIBLE_DEVICES="1,2")
    assert "3.9 GB in all, 2.0 GB buffer, 3.9 GB free: 1.9 GB for trials" in rows(said, "cuda:1")
    assert [line["device"] for line in study.attempts] == ["cuda:2"]
    assert list(study.contexts().values()) == [{2}]
    assert "malloc" not in study.log.read_text(), "memory of expandable segments is created and mapped"
