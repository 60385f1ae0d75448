"""What an installation takes: builds the wheel and installs it into empty environments, without pip's cache.

    plain   the wheel alone; then a study of a function
    report  with the HTML report; then `tuner --mode quick`
    all     with all extras; then the same

All run in an empty folder. torch is installed first and by itself, and all arguments go to that command of pip, such
as `--index-url https://download.pytorch.org/whl/cpu`. Versions are those of constraints.txt. Exits with 1 if an
installation or a study fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FUNCTION = """
import torch
import tuner


def train(config):
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=config["lr"])
    for _ in range(3):
        loss = (weight**2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tuner.report(val_loss=loss.item())


if __name__ == "__main__":
    space = {"lr": {"loguniform": [1e-3, 0.3]}}
    tuner.run(train, space=space, metric="val_loss", direction="minimize", num_samples=4, output="out")
"""
STUDIES = {
    "plain": ("", ["python", "function.py"]),
    "report": ("[report]", ["tuner", "--mode", "quick", "--output", "out"]),
    "all": ("[all]", ["tuner", "--mode", "quick", "--output", "out"]),
}
CHECKS = (
    ["tuner", "--version"],
    ["tuner", "--help"],
    ["tuner", "results", "out"],
    ["tuner", "doctor"],
    ["tuner", "--mode", "quick", "--output", "built-in"],
)


def timed(command: Sequence[str | Path], folder: Path) -> tuple[float, str]:
    """The seconds that a command takes, and what it prints. One that fails ends this program."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"XDG_CACHE_HOME": str(folder / "cache")}
    began = time.monotonic()
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"error: {' '.join(map(str, command))} ended with {run.returncode}:\n{run.stdout}{run.stderr}")
    return time.monotonic() - began, run.stdout


def measure(name: str, wheel: Path, torch_source: Sequence[str], folder: Path) -> str:
    """A line of the table, after the installation has worked."""
    extras, study = STUDIES[name]
    venv.create(folder / "venv", with_pip=True, symlinks=True)
    programs = folder / "venv" / "bin"
    work = folder / "work"
    work.mkdir()
    (work / "function.py").write_text(FUNCTION)
    pip = [programs / "python", "-m", "pip", "install", "--quiet", "--no-cache-dir", "-c", ROOT / "constraints.txt"]
    torch_seconds, _ = timed([*pip, "torch", *torch_source], work)
    seconds, _ = timed([*pip, f"{wheel}{extras}"], work)
    packages = timed([programs / "python", "-m", "pip", "list", "--format", "freeze"], work)[1].split()
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    size = sum(path.lstat().st_blocks * 512 for path in site.rglob("*"))
    study_seconds, printed = timed([programs / study[0], *study[1:]], work)
    if printed.count("completed") < 2 or (work / "out" / "report.html").exists() != (name != "plain"):
        sys.exit(f"error: {name}: not the study that was expected:\n{printed}")
    for command in CHECKS:
        timed([programs / command[0], *command[1:]], work)
    return f"{name:<7}{len(packages):8}{size / 2**20:8.0f}{torch_seconds:9.0f}{seconds:9.0f}{study_seconds:9.1f}"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="install") as temporary:
        folder = Path(temporary)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir", "-w", folder]
        timed([*pip, ROOT], folder)
        (wheel,) = folder.glob("*.whl")
        print(f"wheel: {wheel.name}, {wheel.stat().st_size / 2**20:.1f} MiB; Python {sys.version.split()[0]}")
        print("       packages     MiB  torch s   rest s  study s", flush=True)
        for name in STUDIES:
            print(measure(name, wheel, sys.argv[1:], folder / name), flush=True)


if __name__ == "__main__":
    main()
