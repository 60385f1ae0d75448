from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from tuner.machine.interrupts import Immediate, Interrupt, orderly


def test_a_signal_only_asks_and_the_third_insists() -> None:
    interrupt = Interrupt()
    with orderly(interrupt):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGHUP)
    with pytest.raises(KeyboardInterrupt):
        interrupt.check()


def test_a_signal_that_was_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    interrupt = Interrupt()
    try:
        with orderly(interrupt):
            os.kill(os.getpid(), signal.SIGHUP)
        assert not interrupt.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def run() -> None:
        with orderly(Interrupt()):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


def test_what_can_be_broken_off_is_at_once() -> None:
    interrupt = Immediate()
    with orderly(interrupt):
        with pytest.raises(KeyboardInterrupt), interrupt.at_once():
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("it went on")
        os.kill(os.getpid(), signal.SIGTERM)  # only remembered: what follows is being written
        with pytest.raises(KeyboardInterrupt), interrupt.at_once():
            raise AssertionError("it went on")


def test_a_module_is_imported_to_its_end_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_module.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.2)\nwhole = True\n"
    )
    interrupt = Immediate()
    with orderly(interrupt), pytest.raises(KeyboardInterrupt), interrupt.at_once():
        import slow_module  # type: ignore[import-not-found]

        assert slow_module.whole
        time.sleep(10)
        raise AssertionError("it went on")
    assert sys.modules.pop("slow_module").whole
    assert interrupt.signals == 1


def test_what_a_module_does_as_it_is_imported_can_be_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "running_module.py").write_text(
        "import os, signal\n"
        "from tuner.machine.interrupts import Immediate, orderly\n"
        "interrupt = Immediate()\n"
        "with orderly(interrupt), interrupt.at_once():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    raise AssertionError('it went on')\n"
    )
    with pytest.raises(KeyboardInterrupt):
        import running_module  # type: ignore[import-not-found]  # noqa: F401
