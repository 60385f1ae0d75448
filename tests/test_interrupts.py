from __future__ import annotations

import os
import signal
import threading

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
