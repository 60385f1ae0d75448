from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.kd_gat_models import config, model_of
from tuner.datasets.can import CanData
from tuner.errors import InputError
from tuner.search.configurations import complete, configurations, mode_file, read_configs
from tuner.training.checkpoints import Checkpoint
from tuner.training.endings import Fit
from tuner.training.loop import fit
from tuner.training.step import evaluate
from tuner.trial import AUTO, MAX_BATCH, Trial
from tuner.workloads.kd_gat import CHUNK
from tuner.workloads.kd_gat.workload import KDGAT
from tuner.workloads.lookup import find_workload

SIZES = {
    ("autoencoder", "teacher"): (480, 48, 4),
    ("autoencoder", "student"): (80, 16, 1),
    ("classifier", "teacher"): (48, 3, 8),
    ("classifier", "student"): (24, 2, 4),
}


def finished(**values: Any) -> dict[str, Any]:
    return KDGAT().finish(complete(values, KDGAT().schema))


# ------------------------------------------------------------------------------------------- configurations


@pytest.mark.parametrize(("stage", "role"), SIZES)
def test_a_role_stands_for_sizes(stage: str, role: str) -> None:
    found = finished(stage=stage, role=role)
    depth = "latent_channels" if stage == "autoencoder" else "num_layers"
    assert (found["hidden_channels"], found[depth], found["heads"]) == SIZES[stage, role]
    assert finished(stage=stage, role=role, heads=2)["heads"] == 2


def test_finishing_twice_is_finishing_once() -> None:
    found = finished(use_kd=1, teacher_path="a/best.pt", curriculum=1, scorer_path="b/best.pt")
    assert KDGAT().finish(found) == found


def test_by_default_the_batch_is_found_up_to_its_size() -> None:
    assert {key: finished()[key] for key in ("batch_size", MAX_BATCH)} == {"batch_size": AUTO, MAX_BATCH: 4096}
    assert finished(batch_size=64)[MAX_BATCH] == 64
    assert finished(batch_size=64, optimize_batch_size=0)["batch_size"] == 64
    assert finished(batch_size=AUTO, optimize_batch_size=0)["batch_size"] == AUTO


def test_paths_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert finished(use_kd=1, teacher_path="t/best.pt")["teacher_path"] == str(tmp_path / "t/best.pt")
    assert finished()["teacher_path"] == ""


WRONG = {
    "role teacher and use_kd 1": {"role": "teacher", "use_kd": 1},
    "teacher_path is given, but use_kd is 0": {"teacher_path": "best.pt"},
    "scorer_path is given, but curriculum is 0": {"scorer_path": "best.pt"},
    "curriculum 1: only a classifier has one": {"stage": "autoencoder", "curriculum": 1},
}


@pytest.mark.parametrize("reason", WRONG)
def test_values_that_do_not_go_together_are_refused(reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        finished(**WRONG[reason])


MODES = sorted(path.stem for path in mode_file("kd-gat", "full").parent.iterdir())


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_of_complete_configurations(mode: str) -> None:
    listed, defaults = read_configs(mode_file("kd-gat", mode))
    found = configurations(listed, KDGAT().schema, defaults=defaults, finish=KDGAT().finish)
    assert len({configuration.values["stage"] for configuration in found}) == 1
    assert all(configuration.values["hidden_channels"] > 0 for configuration in found)


# ------------------------------------------------------------------------------------------- prerequisites


def test_who_learns_needs_a_teacher_of_its_task() -> None:
    (path,) = KDGAT().prerequisites(finished(use_kd=1, use_id=0, held_out="dos", teacher_epochs=7)).items()
    assert (path[0], path[1].name) == ("teacher_path", "classifier-teacher-without-IDs-dos")
    values = path[1].values
    assert (values["role"], values["use_kd"], values["epochs"], values["heads"]) == ("teacher", 0, 7, 8)
    assert (values["use_id"], values["held_out"]) == (0, "dos")
    assert KDGAT().prerequisites(values) == {}


def test_configurations_that_differ_in_what_is_their_own_need_the_same() -> None:
    one, other = (
        KDGAT().prerequisites(finished(use_kd=1, curriculum=1, **own))
        for own in ({"lr": 0.1, "heads": 2}, {"temperature": 8.0, "batch_size": 64, "seed": 1})
    )
    assert one == other
    assert {key: teacher.values["stage"] for key, teacher in one.items()} == {
        "teacher_path": "classifier",
        "scorer_path": "autoencoder",
    }


def test_with_paths_nothing_is_needed() -> None:
    given = finished(use_kd=1, teacher_path="t.pt", curriculum=1, scorer_path="s.pt")
    assert KDGAT().prerequisites(given) == {}
    assert KDGAT().prerequisites(finished()) == {}


# ------------------------------------------------------------------------------------------- data and training


def test_an_epoch_is_every_graph_once_in_a_new_order(traffic: CanData) -> None:
    torch.manual_seed(0)
    epochs = [list(KDGAT().batches(config(), traffic)) for _ in range(2)]
    assert [[len(batch.graph) for batch in epoch] for epoch in epochs] == [[8, 8, 8, 8, 4]] * 2
    one, other = (torch.cat([batch.graph for batch in epoch]).tolist() for epoch in epochs)
    assert one != other
    assert sorted(one) == sorted(other) == traffic.train.tolist()


def test_a_rehearsal_evaluates_the_largest_graphs(traffic: CanData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.workloads.kd_gat.workload.CHUNK", 3)
    edges = np.diff(traffic.first_edge) + np.diff(traffic.first)
    found = KDGAT().rehearsal(traffic).validation
    assert edges[found].tolist() == sorted(edges[traffic.validation].tolist())[:-4:-1]
    assert CHUNK == 500


def test_all_data_are_to_train_on(traffic: CanData) -> None:
    assert len(KDGAT().all_data(traffic).train) == 60
    assert KDGAT().training_samples(traffic) == 36


def test_data_are_described(traffic: CanData) -> None:
    text = KDGAT().describe(traffic)
    assert text.startswith("60 graphs: 60 graphs of ")
    first, *by_file = text.splitlines()
    assert first.endswith("graphs with attacks; 36 training, 12 validation and 12 test graphs")
    assert [line.split(":")[0] for line in by_file] == [
        f"{name}_synthetic" for name in ("attack_free", "dos", "fuzzing")
    ]
    assert by_file[1].endswith("of them attacks (dos)")


def trained(
    data: CanData, chosen: dict[str, Any], folder: Path | None = None, epochs: int | None = None
) -> Fit | None:
    trial = Trial("001", "kd-gat", "t", chosen, seed=0)
    checkpoint = None if folder is None else Checkpoint(folder, trial, 0)
    *_, last = islice(fit(KDGAT(), trial, data, "cpu", checkpoint), None if epochs is None else 1 + epochs)
    assert checkpoint is None or checkpoint.faults == ()
    return last if isinstance(last, Fit) else None


@pytest.mark.parametrize("stage", ["classifier", "autoencoder"])
def test_training_lowers_the_loss(stage: str, traffic: CanData) -> None:
    sizes = {"hidden_channels": 16, "batch_size": 4}
    found = trained(traffic, config(stage, epochs=8, lr=2e-2, **sizes))
    untrained = evaluate(KDGAT(), model_of(traffic, stage, **sizes), traffic, "validation")
    assert found is not None
    assert found.metrics["val_loss"] < 0.9 * untrained["val_loss"]


def test_one_that_goes_on_ends_as_one_that_never_stopped(traffic: CanData, tmp_path: Path) -> None:
    taught = {"use_kd": 1, "curriculum": 1, "dropout": 0.2, "epochs": 3}
    whole = trained(traffic, config(**taught))
    trained(traffic, config(**taught), tmp_path, epochs=2)
    assert (tmp_path / "001.pt").exists()
    gone_on = trained(traffic, config(**taught), tmp_path)
    assert whole is not None
    assert gone_on is not None
    assert gone_on.metrics == whole.metrics
    assert all(torch.equal(weight, gone_on.weights[name]) for name, weight in whole.weights.items())


def test_the_workload_is_found_by_its_name() -> None:
    assert isinstance(find_workload("kd-gat"), KDGAT)
