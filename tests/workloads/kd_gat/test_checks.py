from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.kd_gat_models import STAGES, best_pt, config
from tuner.datasets.can import CanData
from tuner.errors import InputError
from tuner.estimation.tracing.tracer import trace_workload
from tuner.trial import Configuration
from tuner.workloads.kd_gat.graphs import graphs_of, usable
from tuner.workloads.kd_gat.model import load_teacher
from tuner.workloads.kd_gat.workload import KDGAT


def check(data: CanData, *listed: dict[str, Any]) -> None:
    KDGAT().check([Configuration(f"c{number}", values) for number, values in enumerate(listed)], data)


def refused(reason: str, data: CanData, *listed: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=reason) as raised:
        check(data, *listed)
    assert "\n" not in str(raised.value)


# ------------------------------------------------------------------------------------------- which graphs


def test_an_autoencoder_uses_normal_graphs_only(traffic: CanData) -> None:
    found = usable(traffic, traffic.train, stage="autoencoder")
    assert found.tolist() == [graph for graph in traffic.train.tolist() if traffic.label[graph] == 0]
    assert len(graphs_of(traffic, "test", stage="autoencoder")) == int((traffic.label[traffic.test] == 0).sum())


def test_a_held_out_attack_is_tested_and_not_trained_on(traffic: CanData) -> None:
    dos = traffic.attacks.index("dos")
    used = usable(traffic, traffic.train, stage="classifier", held_out="dos")
    assert dos not in traffic.attack[used]
    assert dos in traffic.attack[traffic.train]
    assert set(traffic.attack[graphs_of(traffic, "test", stage="classifier", held_out="dos")].tolist()) == {0, dos}
    assert graphs_of(traffic, "test", stage="classifier").tolist() == traffic.test.tolist()


# ------------------------------------------------------------------------------------------- what is refused


def test_what_fits_is_not_refused(traffic: CanData, tmp_path: Path) -> None:
    for stage in STAGES:
        path = best_pt(tmp_path / f"{stage}.pt", traffic, stage, held_out="dos")
        chosen = config(stage, held_out="dos", use_kd=1, teacher_path=path)
        check(traffic, config(stage), chosen)
        assert load_teacher(str(path), stage, len(traffic.identifiers) + 1)[0]["held_out"] == "dos"


def test_stages_cannot_be_compared(traffic: CanData) -> None:
    refused("stages autoencoder and classifier in one study", traffic, config(), config("autoencoder"))


def test_an_attack_that_the_data_have_not_cannot_be_held_out(traffic: CanData) -> None:
    refused(
        "c0: held_out 'spoofing': .*no such attack: choose one of dos, fuzzing", traffic, config(held_out="spoofing")
    )


def test_a_classifier_needs_attacks(traffic: CanData) -> None:
    peaceful = replace(traffic, label=np.zeros_like(traffic.label), attack=np.zeros_like(traffic.attack))
    refused(r"no graph with injected frames \(flag T\) for train: stage classifier needs labels", peaceful, config())
    check(peaceful, config("autoencoder"))


def test_each_part_needs_attacks_and_normal_graphs(traffic: CanData) -> None:
    labels = traffic.label
    only_normal, only_attacks = (traffic.validation[labels[traffic.validation] == label] for label in (0, 1))
    refused("no graph with injected frames .* for validation", replace(traffic, validation=only_normal), config())
    for stage in STAGES:
        refused("no normal graph for validation", replace(traffic, validation=only_attacks), config(stage))


def test_an_attack_cannot_be_held_out_if_it_is_the_only_one(traffic: CanData) -> None:
    dos = traffic.attacks.index("dos")
    without = replace(traffic, train=traffic.train[np.isin(traffic.attack[traffic.train], [0, dos])])
    refused("for train but dos, which is held out", without, config(held_out="dos"))


def test_heads_must_divide_a_vgaes_channels(traffic: CanData) -> None:
    refused("c0: hidden_channels 8, latent_channels 4, heads 3", traffic, config("autoencoder", heads=3))


# ------------------------------------------------------------------------------------------- teachers


def taught(path: Path | str, stage: str = "classifier", **values: Any) -> dict[str, Any]:
    return config(stage, use_kd=1, teacher_path=str(path), **values)


def test_a_teacher_that_is_not_there_is_refused(
    traffic: CanData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(r"c0: teacher_path gone\.pt: cannot be read \(No such file", traffic, taught("gone.pt"))


def test_a_file_that_is_no_teacher_is_refused(traffic: CanData, tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("not weights")
    refused(r"teacher_path .*text\.pt: not a best\.pt \(", traffic, taught(tmp_path / "text.pt"))
    torch.save({"workload": "kd-gat"}, tmp_path / "empty.pt")
    refused(r"empty\.pt: not a best\.pt \(KeyError\)", traffic, taught(tmp_path / "empty.pt"))


def test_a_teacher_of_another_workload_is_refused(traffic: CanData, tmp_path: Path) -> None:
    torch.save({"workload": "graphsage", "config": {}, "weights": {}}, tmp_path / "sage.pt")
    refused(
        "it is of workload graphsage: give the best.pt of a study of kd-gat", traffic, taught(tmp_path / "sage.pt")
    )


def test_a_teacher_of_the_other_stage_is_refused(traffic: CanData, tmp_path: Path) -> None:
    path = best_pt(tmp_path / "vgae.pt", traffic, "autoencoder")
    refused("it is of stage autoencoder, and classifier is needed", traffic, taught(path))
    path = best_pt(tmp_path / "gat.pt", traffic)
    scored = config(curriculum=1, scorer_path=path)
    refused("c0: scorer_path .*it is of stage classifier, and autoencoder is needed", traffic, scored)


def test_a_teacher_of_other_ids_does_not_fit(traffic: CanData, tmp_path: Path) -> None:
    known = len(traffic.identifiers)
    path = best_pt(tmp_path / "best.pt", replace(traffic, identifiers=traffic.identifiers[1:]))
    refused(f"its shape does not fit: it knows {known - 1} CAN IDs, and the data have {known}", traffic, taught(path))


def test_a_teacher_whose_weights_are_not_those_of_its_sizes_is_refused(traffic: CanData, tmp_path: Path) -> None:
    path = best_pt(tmp_path / "best.pt", traffic)
    content = torch.load(path, weights_only=True)
    torch.save({**content, "config": config(heads=1)}, path)
    refused("its weights do not fit its own configuration .*: it is damaged", traffic, taught(path))


def test_a_teacher_that_knows_what_is_held_out_is_refused(traffic: CanData, tmp_path: Path) -> None:
    path = best_pt(tmp_path / "best.pt", traffic)
    reason = "it was trained with held_out '', and this configuration has 'dos': both must have the same"
    refused(reason, traffic, taught(path, held_out="dos"))


def test_a_teacher_that_sees_ids_does_not_teach_one_that_must_not(traffic: CanData, tmp_path: Path) -> None:
    path = best_pt(tmp_path / "best.pt", traffic)
    refused(
        r"best\.pt: it was trained with use_id 1, and this .* has 0: both must",
        traffic,
        taught(path, use_id=0),
    )


def test_any_number_of_teachers_can_be_traced_once_they_are_checked(traffic: CanData, tmp_path: Path) -> None:
    listed = [taught(best_pt(tmp_path / f"{number}.pt", traffic)) for number in range(9)]
    check(traffic, *listed)
    assert all(trace_workload(KDGAT(), values, traffic).peak_bytes() > 0 for values in (listed[0], listed[-1]))
