from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from tests.support.emulated_card import missing
from tuner.datasets.can import CanData, synthetic_can
from tuner.datasets.can import build as build_can
from tuner.datasets.ratings import RatingData
from tuner.datasets.synthetic import synthetic_ratings
from tuner.datasets.trees import TreeData, build, split, synthetic_trees
from tuner.machine.caps import environment
from tuner.trial import GB, Device

# In a pipe it sets the width of tables; processes that pytest-xdist starts may have it.
os.environ.pop("COLUMNS", None)

SHARED = "shared by tests"
CACHES = count()
SHARING: set[Path] = set()  # the files with a test that can do with the shared Ray
# On a Ray that was there before, a study's workers have variables of its own: those that Ray keeps ready are no use.
NO_SPARE_WORKERS = {"RAY_prestart_worker_first_driver": "0"}


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Trials in this process set torch's threads; every test starts from the same."""
    import torch  # not above: pytest's controlling process, which runs no test, would load it, and Ray, as well

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="module")
def _clean_up_is_fast() -> None:
    """As in a worker: the clean-up after every trial looks at what trials leave, and not at all of torch and Ray."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _signals_have_their_usual_effect() -> None:
    """Under nohup, or in the background of a script, they would be ignored, here and in what the tests start."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(autouse=True)
def _cores_count_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans do not depend on what else the machine does."""
    monkeypatch.setattr("tuner.machine.devices.idle_cores", lambda: None)


@pytest.fixture(autouse=True)
def _a_functions_worker_loads_what_a_users_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of every library have been collected here; without this a trial's process would load them all."""
    monkeypatch.setattr("tuner.workloads.program.HEAVY", ())


@pytest.fixture
def writes_pages() -> None:
    """For tests in which studies of this process write their page at the end, as they do unless ``report`` is off."""


@pytest.fixture(autouse=True)
def _studies_write_no_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page takes half a second, and most tests of studies never look at it."""
    if "writes_pages" not in request.fixturenames:
        monkeypatch.setattr("tuner.study.show.write_report", lambda *_: None)


@pytest.fixture(autouse=True, scope="session")
def _own_folder_for_temporary_files() -> Iterator[None]:
    """Studies of tests see no leases of studies beside them. The path is short, as Ray's sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder, environment({"TMPDIR": folder}):
        before, tempfile.tempdir = tempfile.tempdir, None
        yield
        tempfile.tempdir = before


@pytest.fixture(autouse=True)
def _own_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test uses the calibration of its user, or of another test. Few tests need the folder, which they make."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "caches" / str(next(CACHES))))


@pytest.fixture(scope="session")
def ratings() -> RatingData:
    """A small data set: 40 users, 60 items, 1,000 ratings."""
    return synthetic_ratings(40, 60, 1000)


@pytest.fixture(scope="session")
def trees() -> TreeData:
    """Twelve generated trees of two classes: 8, 2 and 2 in the three splits."""
    grown, labels, classes = synthetic_trees(12)
    return split(build(grown, labels, "12 trees", classes), 0)


@pytest.fixture(scope="session")
def traffic() -> CanData:
    """Sixty generated graphs of CAN traffic in three recordings: 36, 12 and 12 in the three splits."""
    return build_can(synthetic_can(2000).items(), 100, "60 graphs")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small data set in the files of ML-100K, without u1.base and u1.test."""
    return write_ratings(tmp_path / "ml-small")


def write_ratings(data: Path) -> Path:
    """The files of that data set, the same every time."""
    random = np.random.default_rng(0)
    pairs = random.permutation(40 * 60)[:1000]
    lines = [f"{pair // 60 + 1}\t{pair % 60 + 1}\t{random.integers(1, 6)}\t0" for pair in pairs]
    data.mkdir()
    (data / "u.data").write_text("\n".join(lines) + "\n")
    users = [f"{user}|{20 + user}|{'MF'[user % 2]}|{('artist', 'writer')[user % 2]}|0" for user in range(1, 41)]
    (data / "u.user").write_text("\n".join(users) + "\n")
    items = [f"{item}|Film {item}|01-Jan-1995||url|" + "|".join("01"[item % 2] * 19) for item in range(1, 61)]
    (data / "u.item").write_text("\n".join(items) + "\n")
    return data


@pytest.fixture
def gpu_16gb() -> Device:
    return Device("", "cuda", 0, "a GPU", 16 * GB, 16 * GB, cores=16)


@pytest.fixture
def shared_ray() -> None:
    """A Ray as a notebook starts one, for all tests that can do with it: one takes five seconds to start.

    It goes on after a test; ``pytest_runtest_setup`` ends it before a test that could be misled by it.
    """
    share_ray()


def share_ray() -> None:
    """What ``shared_ray`` does, for fixtures of a wider scope; their tests ask for ``shared_ray`` as well."""
    import ray

    if not ray.is_initialized():
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        with environment(NO_SPARE_WORKERS):
            ray.init("local", num_cpus=2, object_store_memory=2**27, namespace=SHARED, **quiet)


def shares_ray(item: pytest.Item) -> bool:
    return "shared_ray" in getattr(item, "fixturenames", ())


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Without the emulated card its tests are skipped.

    A shared Ray is ended before a test with a Ray of its own, and before files in which no test shares it.
    """
    if item.get_closest_marker("emulated") and (why := missing()):
        pytest.skip(why)
    if shares_ray(item) or (item.path in SHARING and not item.get_closest_marker("ray")):
        return
    ray = sys.modules.get("ray")  # most tests need not load it
    if ray and ray.is_initialized() and ray.get_runtime_context().namespace == SHARED:
        ray.shutdown()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported meanwhile stays: to look for garbage in it takes a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start Ray come first, as they take the longest; of these, files and tests that can share one."""
    kinds: dict[Path, set[bool]] = {item.path: set() for item in items}
    for item in items:
        if item.get_closest_marker("ray"):
            kinds[item.path].add(shares_ray(item))
    SHARING.update(file for file, kind in kinds.items() if True in kind)
    ranks = {file: (not kind, False in kind, True not in kind) for file, kind in kinds.items()}
    order = {file: number for number, file in enumerate(kinds)}
    items.sort(key=lambda item: (ranks[item.path], order[item.path], not shares_ray(item)))
