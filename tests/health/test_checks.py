"""What doctor makes of facts; no machine is looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tuner.errors import install_command, spelled
from tuner.health.checks import Finding, examine
from tuner.health.doctor import findings_text
from tuner.health.facts import Command, Disk, Facts, Gpu, RaySessions, Torch
from tuner.machine.holders import Holder
from tuner.trial import GB

CLOSED = Disk("/tmp", GB, GB, writable=False)
ROOMY = Disk("results", 100 * GB, 50 * GB)
OLD_DRIVER, HIDDEN = Torch(cuda="12.8"), {"CUDA_VISIBLE_DEVICES": ""}
BROKEN = Torch("OSError: libcudart")
WELL = Facts(
    python="3.11.7",
    executable="/venv/bin/python",
    system="Linux 6.1",
    packages={"torch": "2.13.0", "ray": "2.60.0"},
    extras={"mlflow": "3.17.2", "plotly": "7.1.0", "wandb": "0.31.0"},
    variables={},
    torch=Torch(cuda="12.8", available=True, devices=1),
    driver="570.1",
    gpus=(Gpu(0, "H100", 80 * GB, 79 * GB),),
    sessions=RaySessions("/tmp/ray"),
    ram_bytes=64 * GB,
    ram_free_bytes=60 * GB,
    cgroup_bytes=None,
    cgroup_used_bytes=0,
    cores=16,
    shared=Disk("/dev/shm", 32 * GB, 32 * GB),
    results=ROOMY,
    cache=replace(ROOMY, path="/home/ann/.cache/tuner"),
    ray_disk=replace(ROOMY, path="/tmp"),
    commands={"tune": Command("/venv/bin/tune", "tuner"), "tuner": Command("/venv/bin/tuner", "tuner")},
)
NO_GPU: dict[str, Any] = {"gpus": (), "driver": "", "torch": Torch()}
HELD = Gpu(0, "H100", 80 * GB, GB, (Holder(7, "python", "ann", 70 * GB), Holder(8, "x", "", None)))


def amiss(**changed: Any) -> list[Finding]:
    """What is not well where these facts are others."""
    return [each for each in examine(replace(WELL, **changed)) if each.level != "ok"]


def test_on_a_machine_that_is_well_nothing_is_to_be_done() -> None:
    assert amiss() == []
    assert amiss(**NO_GPU) == []
    assert {each.remedy for each in examine(WELL)} == {""}


@pytest.mark.parametrize(
    ("check", "level", "text", "remedy", "changed"),
    [
        ("python", "problem", "3.10.2", "3.11 or newer", {"python": "3.10.2"}),
        ("python", "warning", "Darwin", "on Linux only", {"system": "Darwin 24"}),
        ("torch", "problem", "cannot be imported: OSError: libcudart", "reinstall", {"torch": BROKEN}),
        ("torch", "warning", "is a build for the CPU", "install a build for CUDA", {"torch": Torch()}),
        ("torch", "problem", r"finds no GPU, and the driver \(570.1\) has 1", "nvidia-smi", {"torch": OLD_DRIVER}),
        (
            "torch",
            "warning",
            "CUDA_VISIBLE_DEVICES=''",
            "unset it",
            {"torch": OLD_DRIVER, "variables": HIDDEN},
        ),
        ("cuda:0", "warning", "in MIG mode and has no instance", "nvidia-smi mig", {"gpus": (Gpu(0, "", 0, 0),)}),
        ("cuda:0:1", "warning", "10.0 of", "not shown", {"gpus": (Gpu(0, "A", 80 * GB, 10 * GB, instance=1),)}),
        ("cuda:0", "warning", "free; held by pid 7 python of ann 70.0 GB, pid 8 x", "end", {"gpus": (HELD,)}),
        ("cuda:0", "problem", "0.0 of 80.0 GB free", "end what holds", {"gpus": (replace(HELD, free_bytes=0),)}),
        ("cuda:0", "warning", "10.0 of", "not shown", {"gpus": (Gpu(0, "A", 80 * GB, 10 * GB),)}),
        ("cuda:0", "problem", "GPU is lost", "nvidia-smi", {"gpus": (Gpu(0, "", 0, 0, error="GPU is lost"),)}),
        ("ray", "problem", "is not installed", "pip install", {"packages": {"torch": "2.13.0"}}),
        (
            "ray's cluster",
            "warning",
            "10.0.0.1:6379, where nothing listens",
            "ray stop",
            {"sessions": RaySessions("/tmp/ray", address="10.0.0.1:6379")},
        ),
        (
            "ray's sessions",
            "warning",
            "40 old sessions with 3.00 GB in /tmp/ray",
            "rm -r /tmp/ray/session_",
            {"sessions": RaySessions("/tmp/ray", 40, 3 * GB)},
        ),
        ("memory", "problem", "may use 1.0 GB, 0.5 GB of it free", "a larger limit",
         {**NO_GPU, "cgroup_bytes": GB, "cgroup_used_bytes": GB // 2}),
        ("/dev/shm", "warning", "0.06 of 0.06 GB", "--shm-size", {"shared": Disk("/dev/shm", GB // 16, GB // 16)}),
        ("/dev/shm", "warning", "data loaders", "bus error", {"shared": Disk("/dev/shm", GB, GB // 2)}),
        ("results", "problem", "results: 0.1 of", "output,", {"results": Disk("results", 100 * GB, GB // 10)}),
        ("results", "problem", "cannot be written", "output,", {"results": Disk("results", GB, GB, writable=False)}),
        ("ray's folder", "warning", "20.0 of 1000", "RAY_TMPDIR", {"ray_disk": Disk("/tmp", 1000 * GB, 20 * GB)}),
        ("cache", "warning", "/ro: cannot be written", "XDG_CACHE_HOME", {"cache": replace(CLOSED, path="/ro")}),
        ("ray's folder", "problem", "/tmp: cannot be", "short path", {"ray_disk": CLOSED}),
        ("ray's folder", "warning", "not RAY_TMPDIR=/a/b", "short path", {"variables": {"RAY_TMPDIR": "/a/b"}}),
        ("tuner", "warning", "/a/tuner is another program", "python -m tuner",
         {"commands": {"tune": Command(), "tuner": Command("/a/tuner", "another program")}}),
    ],
)  # fmt: skip
def test_what_is_amiss_is_told_with_its_remedy(
    check: str, level: str, text: str, remedy: str, changed: dict[str, Any]
) -> None:
    (found,) = amiss(**changed)
    assert (found.check, found.level) == (check, level)
    assert text.replace("\\", "") in spelled(found.text)
    assert remedy in spelled(found.remedy)


def test_torch_is_not_blamed_for_a_gpu_that_nothing_can_use() -> None:
    (found,) = amiss(gpus=(Gpu(0, "", 0, 0),), torch=Torch(cuda="12.8"))
    assert found.check == "cuda:0"


def test_a_cluster_that_answers_and_studies_that_run_are_well() -> None:
    answering = RaySessions("/tmp/ray", address="h:6379", answers=True, processes=(5,))
    running = RaySessions("/tmp/ray", stale=2, stale_bytes=GB // 2, processes=(5, 6))
    for sessions, text in ((answering, "address='auto' is h:6379, which answers"), (running, "(pid 5, 6)")):
        assert amiss(sessions=sessions) == []
        assert text in spelled(findings_text(examine(replace(WELL, sessions=sessions))))


def test_that_the_other_name_is_rays_is_well() -> None:
    commands = {"tune": Command("/a/tune", "ray"), "tuner": Command("/a/tuner", "tuner")}
    assert amiss(commands=commands) == []
    assert "/a/tuner is this one; /a/tune is Ray's" in findings_text(examine(replace(WELL, commands=commands)))


def test_a_tmpdir_that_is_too_long_is_told_and_is_well() -> None:
    facts = replace(WELL, variables={"TMPDIR": "/long"})
    (found,) = (each for each in examine(facts) if each.check == "ray's folder")
    assert found.level == "ok" and "; not TMPDIR=/long, whose path is too long" in found.text


def test_an_extra_that_is_missing_is_named_with_its_installation() -> None:
    last = examine(replace(WELL, extras={"mlflow": "3.17.2"}))[-1]
    command = install_command("plotly", "wandb", extra="report,wandb")
    said = f"mlflow 3.17.2 installed; not plotly, wandb: {command} if wanted"
    assert last == Finding("extras", "ok", said)


def test_the_text_has_remedies_below_their_lines_and_a_count() -> None:
    said = findings_text([Finding("a", "ok", "fine"), Finding("b", "problem", "broken", "mend it")])
    assert said == "ok       a: fine\nproblem  b: broken\n         → mend it\n1 problem, no warnings"
