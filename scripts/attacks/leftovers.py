"""Runs studies of every kind, and looks for what they leave and for what another user can see of them meanwhile.

They run in namespaces of their own for processes and mounts, with an empty ``/tmp`` (which ``$HOME`` is in) and
``/dev/shm``. So whatever is found there was left by them, and every process that is still there, too. A process of
another user (65534) looks all the time for files that it can read or write and for sockets that it can connect to.

What may stay is the cache (``~/.cache/tuner``) and what a study was asked to write. Who can read these decides the
umask of who runs the study, as for every file; nobody else can write there. What a Ray that the user has started
leaves (``/tmp/ray``, ``~/.ray``) is left out, and so are folders that are empty whenever they are looked into: of
these PyTorch makes one as it is imported. Exits with 1 if anything was found, and with 69 where such namespaces
cannot be made, which takes root.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

NOBODY = 65534
ROOT = Path(__file__).resolve().parents[2]
PLACES = (Path("/tmp"), Path("/dev/shm"))
WORK, HOME = Path("/tmp/work"), Path("/tmp/home")
STAYS = (WORK, HOME / ".cache/tuner")
RAYS_OWN = (Path("/tmp/ray"), HOME / ".ray")  # where the user has started Ray, and not tuner
SECONDS = 180.0  # a study that takes longer has failed
ENDING_SECONDS = 90.0  # agents of Ray's own notice within a minute that a killed study's Ray is gone
INSIDE = "TUNER_LEFTOVERS_INSIDE"
FUNCTION = """
import time, torch, tuner

def train(config):
    model = torch.nn.Linear(8, 8)
    for epoch in range(4):
        time.sleep(0.3)
        tuner.report({"loss": config["n"] / (epoch + 1)}, checkpoint=model.state_dict())

def broken(config):
    raise ValueError("broken")
"""
SCRIPT = """
import json, sys
print(json.dumps({"loss": float(sys.argv[2])}))
"""
RAY_TUNE = """
import ray, tuner
from ray import tune

def train(config):
    tune.report({"loss": config["n"]})

ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR")
run = tune.RunConfig(storage_path="/tmp/work/ray_tune", verbose=0)
tune.Tuner(tuner.memory_aware(train, estimate=0.8), param_space={"n": tune.grid_search([1, 2])}, run_config=run).fit()
"""
TUNE = (sys.executable, "-m", "tuner")
OPTIONS = ("--device", "cpu", "--gpu-memory-buffer-gb", "0", "--memory-gb", "0.8")
COMPARED = ("--metric", "loss", "--direction", "minimize")


def study(name: str, workers: int, function: str = "train", resume: bool = False) -> list[str]:
    """The command of a study of three trials, with Ray if there are several workers."""
    if resume:
        return [*TUNE, "--resume", name]
    given = ("--space", "space.yaml", "--max-workers", str(workers), "--output", name)
    return [*TUNE, "run", f"trial:{function}", *given, *OPTIONS, *COMPARED]


def run(*command: str, expected: tuple[int, ...] = (0,)) -> None:
    """Runs a command to its end; a wrong exit code raises RuntimeError."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if ended.returncode not in expected:
        raise RuntimeError(
            f"{' '.join(command)}: exit code {ended.returncode}: {(ended.stdout + ended.stderr)[-800:]}"
        )


def broken_off(name: str, workers: int, number: signal.Signals) -> None:
    """Sends a signal to a study of this name as soon as it has reported an epoch."""
    process = subprocess.Popen(study(name, workers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + SECONDS
    reports = WORK / name / "epochs.jsonl"
    while not (reports.exists() and reports.stat().st_size):
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{name}: ended before it could be broken off")
        time.sleep(0.05)
    process.send_signal(number)
    if process.wait(SECONDS) != (130 if number == signal.SIGINT else -number):
        raise RuntimeError(f"{name}: exit code {process.returncode}")


def killed_and_resumed(name: str, workers: int) -> None:
    broken_off(name, workers, signal.SIGKILL)
    run(*study(name, workers, resume=True))


STUDIES: dict[str, Callable[[], None]] = {
    "one worker": lambda: run(*study("one", 1)),
    "Ray": lambda: run(*study("ray", 2)),
    "script": lambda: run(
        *TUNE, "script", "train.py", "--space", "space.yaml", "--max-workers", "2", "--output", "script", *OPTIONS,
        *COMPARED, "--", "--n", "{n}",
    ),
    "Ctrl-C": lambda: broken_off("interrupted", 2, signal.SIGINT),
    "killed and resumed": lambda: killed_and_resumed("killed", 1),
    "killed and resumed with Ray": lambda: killed_and_resumed("killed-ray", 2),
    "refused": lambda: run(*study("refused", 1, "nosuch"), expected=(2,)),
    "broken trials": lambda: run(*study("broken", 2, "broken"), expected=(1,)),
    "memory_aware": lambda: run(sys.executable, "ray_tune.py"),
    "plan and estimate": lambda: [
        run(*TUNE, command, "--mode", "quick", "--device", "cpu") for command in ("plan", "estimate")
    ] and None,
}  # fmt: skip
SHORT = ("one worker", "Ctrl-C", "killed and resumed")


class Spy:
    """Another user's process that looks for what it can read, write and connect to, until it is asked."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if not self._pid:
            self._ours.close()
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            theirs.setblocking(False)
            found: set[str] = set()
            while True:
                with suppress(BlockingIOError):
                    theirs.recv(1)
                    theirs.setblocking(True)
                    theirs.sendall(json.dumps(sorted(found)).encode())
                    os._exit(0)
                found |= {line for place in PLACES for line in seen(place)}
                time.sleep(0.02)

    def report(self) -> list[str]:
        try:
            self._ours.sendall(b"?")
        except BrokenPipeError:
            how = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            return [f"was not there any more: its process ended with {how}"]
        content = b"".join(iter(lambda: self._ours.recv(1 << 16), b""))
        os.waitpid(self._pid, 0)
        found: list[str] = json.loads(content)
        return found


def seen(folder: Path) -> Iterator[str]:
    """What this user can do with the files in a folder."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                path = Path(entry.path)
                mode = path.lstat().st_mode
                stays = any(path.is_relative_to(kept) or kept.is_relative_to(path) for kept in (*STAYS, HOME))
                if any(path.is_relative_to(kept) for kept in RAYS_OWN):
                    continue
                if not stat.S_ISLNK(mode) and os.access(path, os.W_OK):
                    yield f"writes {path}"
                if stat.S_ISSOCK(mode):
                    with socket.socket(socket.AF_UNIX) as client:
                        client.connect(str(path))
                    yield f"connects to {path}"
                elif stat.S_ISDIR(mode):
                    if not stays and any(os.scandir(path)):
                        yield f"lists {path}"
                    yield from seen(path)
                elif stat.S_ISREG(mode) and not stays and os.access(path, os.R_OK):
                    yield f"reads {path}"


def left_files() -> list[str]:
    """Files and folders that should not be there any more; they are removed, so that each is told once."""
    found = []
    for place in PLACES:
        for path in sorted(place.rglob("*")):
            if not any(path.is_relative_to(kept) or kept.is_relative_to(path) for kept in STAYS):
                found.append(f"left {path}")
                shutil.rmtree(path, ignore_errors=True)
                path.unlink(missing_ok=True)
    return found


def left_processes() -> list[str]:
    """Processes that are still there after ``ENDING_SECONDS``. Here all of them are of this script's studies."""
    end = time.monotonic() + ENDING_SECONDS
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        pids = [int(process.name) for process in Path("/proc").iterdir() if process.name.isdigit()]
        others = [pid for pid in pids if pid not in (1, os.getpid())]
        if not others or time.monotonic() > end:
            return [f"still runs: {command_of(pid)}" for pid in others]
        time.sleep(0.2)


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200]
    return str(pid)


def inside(names: list[str]) -> int:
    """Runs the studies and prints what was found of each."""
    for folder in (WORK, HOME):
        folder.mkdir()
    os.environ.update(HOME=str(HOME), PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    for name in ("TMPDIR", "RAY_TMPDIR", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        os.environ.pop(name, None)
    os.chdir(WORK)
    Path("trial.py").write_text(FUNCTION)
    Path("train.py").write_text(SCRIPT)
    Path("ray_tune.py").write_text(RAY_TUNE)
    Path("space.yaml").write_text("space:\n  n: {choice: [1, 2, 3]}\n")
    bad = 0
    if not sees_all():
        print("the other user does not see a file that everybody can read and write", file=sys.stderr)
        return 1
    for name in names:
        spy = Spy()
        failed = []
        try:
            STUDIES[name]()
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failed = [f"failed: {error}"]
        looked = [f"another user {line}" for line in spy.report()]
        if name == "memory_aware":
            for folder in RAYS_OWN:
                shutil.rmtree(folder, ignore_errors=True)
        found = [*failed, *left_processes(), *left_files(), *looked]
        bad += len(found)
        print(f"{name:<28} {f'{len(found)} found' if found else 'nothing'}", flush=True)
        for line in found[:20]:
            print(f"    {line}", flush=True)
    return 1 if bad else 0


def sees_all() -> bool:
    """Whether the other user sees what is open to everybody, so that to find nothing says something."""
    spy, planted = Spy(), Path("/tmp/planted")
    planted.touch()
    planted.chmod(0o666)
    time.sleep(1)
    found = spy.report()
    return {f"reads {planted}", f"writes {planted}"} <= set(found) and left_files() == [f"left {planted}"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Looks for what studies leave, and for what others see of them.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(STUDIES)}; by default all")
    parser.add_argument("--short", action="store_true", help=f"only {', '.join(SHORT)}")
    given = parser.parse_args()
    names = given.names or list(SHORT if given.short else STUDIES)
    if unknown := set(names) - set(STUDIES):
        parser.error(f"{', '.join(unknown)}: choose of {', '.join(STUDIES)}")
    if os.environ.get(INSIDE):
        sys.exit(inside(names))
    mounts = " && ".join(f"mount -t tmpfs -o mode=1777 none {place}" for place in PLACES)
    alone = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", f'{mounts} && exec "$@"', "sh"]
    try:
        usable = subprocess.run([*alone, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        usable = False
    if not usable or ROOT.is_relative_to("/tmp"):
        print("no namespaces of its own: it takes root, and a checkout that is not in /tmp", file=sys.stderr)
        sys.exit(69)
    command = [sys.executable, "-m", "scripts.attacks.leftovers", *names]
    sys.exit(subprocess.run([*alone, *command], env={**os.environ, INSIDE: "1"}).returncode)


if __name__ == "__main__":
    main()
