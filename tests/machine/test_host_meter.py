"""What a trial on a GPU takes of the machine's RAM, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tuner.machine import peak
from tuner.trial import MB

BEGIN = (
    "import mmap, os, sys, time; from tuner.machine import peak; peak.LOOK_SECONDS = 0.01; "
    "meter = peak.HostMeter(); held = b'x' * 2**26"
)
pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")


def grown(*lines: str) -> float:
    """By how many MB a process's peak grows as it does this."""
    program = [BEGIN, "meter.start(); before = meter.peak_bytes()", *lines, "print(meter.peak_bytes() - before)"]
    done = subprocess.run([sys.executable, "-c", "\n".join(program)], capture_output=True, text=True, check=True)
    return int(done.stdout) / MB


def test_what_was_held_for_a_while_counts_and_what_is_mapped_from_files_does_not(tmp_path: Path) -> None:
    assert grown("x = b'x' * 100 * 2**20", "time.sleep(1)", "del x") == pytest.approx(100, abs=10)
    (tmp_path / "data").write_bytes(bytes(100 * MB))
    mapped = (
        f"x = mmap.mmap(os.open({str(tmp_path / 'data')!r}, os.O_RDONLY), 0, prot=mmap.PROT_READ); sum(x[::4096])"
    )
    assert grown(mapped) == pytest.approx(0, abs=10)
    assert grown(mapped, "time.sleep(1)", "x.close()") == pytest.approx(0, abs=10), "it has been given back"


def test_shared_data_do_not_count_for_the_process_that_touched_them_first() -> None:
    shared = "x = mmap.mmap(-1, 100 * 2**20); x[::4096] = b'x' * (len(x) // 4096)"
    assert grown(shared, "time.sleep(1)") == pytest.approx(0, abs=10)
    child = "os.fork() or (x.__setitem__(slice(0, None, 4096), b'y' * (len(x) // 4096)), time.sleep(3), os._exit(0))"
    assert grown(shared, child, "os.wait()") == pytest.approx(50, abs=15), "a loader's batches are its child's"


def test_a_report_only_reads_what_was_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "rollup", lambda pid: pytest.fail("the kernel walks all of a process's pages for it"))
    assert (peak.HostMeter().peak_bytes() or 0) > MB


def test_a_child_counts_with_what_it_does_not_share_also_after_it_has_ended() -> None:
    keeps = "os.fork() or (setattr(sys, 'x', b'x' * 50 * 2**20), time.sleep(3), os._exit(0))"
    assert grown(keeps, keeps, "os.wait(); os.wait()") == pytest.approx(100, abs=25), "not the parent's 64 MB again"


def test_a_new_measurement_begins_anew() -> None:
    assert grown("x = b'x' * 100 * 2**20", "time.sleep(1)", "del x", "meter.start()") == pytest.approx(0, abs=10)
