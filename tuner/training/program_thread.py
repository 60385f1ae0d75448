"""The thread in which a process runs programs."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

IDLE_SECONDS = 1.0  # an ended program has returned by then


class ProgramThread:
    """A thread that runs one program after another, so that the threads that torch starts for it are started once."""

    def __init__(self, *, in_this_thread: bool = False) -> None:
        """Starts the thread; or leaves it to this one, which calls ``work``."""
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.current_thread() if in_this_thread else None
        if not in_this_thread:
            threading.Thread(target=self.work, daemon=True, name="trial").start()

    def start(self, job: Callable[[], None]) -> None:
        """Runs a job, which raises nothing, and returns at once."""
        self._idle.clear()
        self._jobs.put(job)

    def is_idle(self) -> bool:
        """Whether it can take a job; the last one may be about to end."""
        return self._idle.wait(IDLE_SECONDS)

    def wait(self, job: Callable[[], None]) -> None:
        """Runs a job, waits for its end, and raises what it raises. The thread itself runs it at once."""
        if self._thread is threading.current_thread():
            job()
            return
        done: Future[None] = Future()

        def signalling() -> None:
            try:
                job()
                done.set_result(None)
            except BaseException as error:  # which would end the thread
                done.set_exception(error)

        self.start(signalling)
        done.result()

    def work(self) -> None:
        """Runs jobs for ever."""
        while True:
            job = self._jobs.get()
            try:
                job()
            finally:
                del job  # it holds the trial's data
                self._idle.set()


_threads: list[ProgramThread] = []


def program_thread() -> ProgramThread:
    """The process's thread for programs; a new one if an abandoned program still runs in it."""
    if not _threads or not _threads[-1].is_idle():
        _threads.append(ProgramThread())
    return _threads[-1]


def use_main_thread() -> ProgramThread:
    """Has programs run in the main thread, which must then call ``work``."""
    _threads.append(ProgramThread(in_this_thread=True))
    return _threads[-1]
