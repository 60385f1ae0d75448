"""The main program of a ``Child``: ``python -m tuner.execution.child_main PIPE TASKS``.

With ``TrialOptions.fresh`` this process only imports torch and the users' modules. Each trial is a fork of it, which
starts in milliseconds and has nothing of an earlier trial. A fork has only the thread that forked, so this process
starts none, and makes no CUDA context. If a library has done either, the process runs one trial itself, and ends.

The main thread of a trial's process runs the users' programs, since some of them handle signals or start processes.
Another thread runs the trial, and a third one listens to the study and ends the process when that is gone.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pickle import dumps, loads
from typing import TYPE_CHECKING, Any, NoReturn

from tuner.errors import one_line
from tuner.execution.child import ProcessEnd
from tuner.execution.mapped_arrays import unpack
from tuner.execution.worker import TrialOptions, WorkerEvent, run_trial, torch_device
from tuner.machine.devices import pin
from tuner.machine.first_use import without_compiled_folder
from tuner.machine.peak import PeakMeter
from tuner.machine.processes import (
    adopt_descendants,
    descendants,
    end_descendants,
    end_with_parent,
    has_pidfds,
    output_in,
    own_process,
)
from tuner.training.program import deliver, warm_up_program
from tuner.training.program_thread import ProgramThread, use_main_thread
from tuner.trial import Began, Device, Placement
from tuner.workloads.program import Program

if TYPE_CHECKING:
    Pipe = Connection[bytes, bytes]

REMARK = "its process imported everything again: a module has threads or has used CUDA, so no fork is possible"
SAFE = "jemalloc_bg_thd"  # a thread of pyarrow, whose allocator handles forks
ENDING_LOOKS = 10  # at the threads, each 10 ms, as the kernel still shows those that have just ended
# This end of the pipes. A trial's child process closes them, else the study would not notice the end of this process.
_open: list[Pipe] = []


class Trainer:
    """Trains one trial after another on ``device`` in this process."""

    remark = ""  # for the rows of its trials

    def __init__(
        self,
        content: int,
        device: Device,
        threads: int,
        options: TrialOptions,
        *,
        forks: bool = False,
        beside: tuple[str, ...] = (),
    ) -> None:
        """Pins the process to its device, and warms it up for trials of the tasks in a file that it maps.

        ``forks`` says that trials are forks of this process, which warms up by a single thread. ``beside`` are the
        GPUs of other ranks, which a process for one trial sees, too, as under ``torchrun``.
        """
        self._tasks, self._device, self._options = unpack(content), device, options
        pin(device, beside)  # Ray may have chosen another GPU
        tasks, threads = list(self._tasks.values()), 1 if forks else threads
        if any(isinstance(task.workload, Program) for task in tasks):
            warm_up = partial(warm_up_program, torch_device(device), threads, tasks)
        else:
            from tuner.training import rehearsal

            warm_up = partial(rehearsal.warm_up, torch_device(device), threads, tasks)
        self._meter = PeakMeter(device, warm_up)
        gc.freeze()  # so that a garbage collection skips torch's objects: 2 ms instead of 100

    def run(self, placement: Placement) -> Iterator[WorkerEvent]:
        """Streams a trial's events, first ``Began``. The trial's output goes to its log."""
        trial = placement.trial
        with output_in(self._options.log(placement.log)):
            yield Began(trial.trial_id, *own_process())
            try:
                yield from run_trial(self._tasks[trial.workload], placement, self._meter, self._options, self.remark)
            except (SystemExit, KeyboardInterrupt):  # which no trial should raise
                traceback.print_exc()
                raise


def main(descriptor: int, content: int) -> None:
    """Runs trials until the study ends."""
    adopt_descendants()  # so that they are ended, also those that have left their session
    connection: Pipe = Connection(descriptor)
    os.set_inheritable(descriptor, False)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a crash loses what is in the buffer
    inherited, search_path, device, threads, options = loads(connection.recv_bytes())  # noqa: S301  # from the study
    os.environ.pop("PYTHONPATH", None)
    if inherited is not None:
        os.environ["PYTHONPATH"] = inherited
    pin(device)  # before PyG's import has CUDA look which GPUs there are
    try:
        import_all(options.launch.imports, search_path)
        if options.fresh:
            _serve(connection, _preloaded(content, device, threads, options), cuda=device.kind == "cuda")
        else:
            _run_here(connection, partial(Trainer, content, device, threads, options))
    except Exception as error:
        _give_up(connection, error)


def import_all(names: Sequence[str], search_path: Sequence[str]) -> None:
    """Imports what trials need, and then searches as the study does.

    A file of the user's that has the name of a standard module, such as ``random.py``, is not taken for that.
    """
    sys.path += [path for path in search_path if path not in sys.path]
    for name in names:
        with suppress(Exception), without_compiled_folder():  # the trial will raise it again
            importlib.import_module(name)
    sys.path[:] = search_path


def _preloaded(content: int, device: Device, threads: int, options: TrialOptions) -> Callable[..., Trainer]:
    """What makes the trainer in a trial's process. For trials on the CPU it is made here, by a single thread."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    make = partial(Trainer, content, device, threads, options, forks=True)
    if device.kind == "cuda":
        return make
    use_main_thread()  # so that what programs import is loaded without another thread
    trainer = make()
    return lambda **_: trainer


def _serve(connection: Pipe, make: Callable[..., Trainer], *, cuda: bool) -> None:
    """Forks a process for each trial; if that is not possible, runs one trial in this process."""
    # It ends when the study closes the pipe, and its trial before it. A trial has what the user's modules have set.
    handlers = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        signal.SIGCHLD: signal.signal(signal.SIGCHLD, signal.SIG_DFL),
    }
    if not can_fork(cuda=cuda):
        _restore(handlers)
        _run_here(connection, make, once=True, remark=REMARK)
        return
    while True:
        try:
            placement, trial = _next(connection)
        except (EOFError, OSError):  # also one that the study has closed with the end of a trial in it
            return
        others = descendants(os.getpid())  # those that the user's modules have started, for all trials
        pid = os.fork()
        if pid == 0:
            connection.close()
            _begin_process()
            _restore(handlers)
            _run_trial(trial, make, placement)
        trial.close()
        end = dumps(ProcessEnd(_wait(pid, connection, others)))
        try:
            connection.send_bytes(end)
        except OSError:  # the study has ended meanwhile
            return


def _next(connection: Pipe) -> tuple[Placement, Pipe]:
    """The next trial with its pipe."""
    placement: Placement = loads(connection.recv_bytes())  # noqa: S301
    descriptor = recv_handle(connection)
    os.set_inheritable(descriptor, False)
    return placement, Connection(descriptor)


def can_fork(*, cuda: bool) -> bool:
    """Whether a fork of this process could train: this is Linux, it has no other thread, and has not used CUDA.

    OpenBLAS ends its threads at a fork, so a fork is tried first. Torch does not notice every use of CUDA, such as a
    count of the GPUs: with ``cuda``, where trials are on a GPU, the fork uses it, too.
    """
    if not has_pidfds():
        return False
    pid = os.fork()
    if pid == 0:
        torch, used = sys.modules.get("torch"), True
        with suppress(Exception):
            if torch and cuda:
                torch.cuda.init()
            used = bool(torch and torch.cuda._is_in_bad_fork())
        os._exit(used)
    if os.waitpid(pid, 0)[1]:  # it has used CUDA
        return False
    for _ in range(ENDING_LOOKS):
        if _threads() == 1:
            return True
        time.sleep(0.01)
    return False


def _threads() -> int:
    """The number of this process's threads, but those that are safe at a fork."""
    names = []
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:  # it may end meanwhile
            names.append(file.read().strip())
    return len(names) - names.count(SAFE)


def _begin_process() -> None:
    """Makes a fork a trial's process: it leads its own session, and ends with this process."""
    server = os.getppid()
    os.setsid()
    end_with_parent()
    if os.getppid() != server:
        os._exit(1)


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _wait(pid: int, connection: Pipe, others: Collection[int]) -> int:
    """The exit code of a trial's process, whose descendants are killed, but not this process's ``others``.

    Ends this process if the study is gone.
    """
    descriptor = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.register(connection.fileno(), 0)  # reports only the end of the study
    if any(number != descriptor for number, _ in poll.poll()):
        end_descendants()
        os._exit(0)
    os.close(descriptor)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if {*descendants(os.getpid())} - {pid, *others}:
        end_descendants(others)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # what it has left
            pass
    return code


def _run_trial(trial: Pipe, make: Callable[..., Trainer], placement: Placement) -> None:
    """Runs a trial in this process, and ends the process."""
    programs = _programs()
    done = threading.Event()
    _in_thread("study", _listen, trial, done)

    def follow() -> None:
        _send_events(trial, make(beside=placement.beside), placement)
        done.set()
        leave(0)

    _in_thread("trial", follow)
    programs.work()


def _run_here(connection: Pipe, make: Callable[[], Trainer], *, once: bool = False, remark: str = "") -> None:
    """Runs trials in this process one after another, or one, with a remark for its row."""
    programs = _programs()
    _open.append(connection)

    def follow() -> None:
        try:
            trainer = make()
            trainer.remark = remark
        except Exception as error:
            _give_up(connection, error)
        while True:
            try:
                placement, trial = _next(connection)
            except (EOFError, OSError):  # the study is gone, maybe with a trial in the pipe
                _end()
            done = threading.Event()
            _in_thread("study", _listen, trial, done)
            _send_events(trial, trainer, placement)
            done.set()
            connection.send_bytes(dumps(ProcessEnd(0, spent=once)))

    _in_thread("trials", follow)
    programs.work()


def _programs() -> ProgramThread:
    """The main thread, which must then call ``work``."""
    os.register_at_fork(after_in_child=_close)
    return use_main_thread()


def _close() -> None:
    for pipe in _open:
        pipe.close()


def _send_events(trial: Pipe, trainer: Trainer, placement: Placement) -> None:
    _open.append(trial)
    for event in trainer.run(placement):
        trial.send_bytes(dumps(event))
    _open.remove(trial)


def _listen(trial: Pipe, done: threading.Event) -> None:
    """Delivers answers. If the study is gone before the trial is done, kills this process and its children."""
    try:
        while True:
            deliver(*loads(trial.recv_bytes()))  # noqa: S301
    except (EOFError, OSError):
        if not done.is_set():
            _end()


def _end() -> NoReturn:
    """Ends the process at once, with all that its trials have started."""
    end_descendants()
    os._exit(1)


def _in_thread(name: str, work: Callable[..., None], *arguments: object) -> None:
    def guarded() -> None:
        try:
            work(*arguments)
        except BaseException:
            fail()

    threading.Thread(target=guarded, daemon=True, name=name).start()


def _give_up(connection: Pipe, error: Exception) -> NoReturn:
    """Ends the process, which cannot run any trial."""
    text = f"{type(error).__name__}: {one_line(error)}".removesuffix(": ")
    with suppress(OSError):
        connection.send_bytes(dumps(ProcessEnd(1, spent=True, error=text)))
    fail()


def fail() -> NoReturn:
    """Ends the process with the traceback of the exception."""
    try:
        traceback.print_exc()
    finally:  # also if the trial has closed its output
        leave(1)


def leave(code: int) -> NoReturn:
    """Ends the process without its exit handlers, which would wait for threads."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the trial may have closed or replaced it
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
