"""Builds PyTorch's CUDA build on an emulated card into a folder: build.py DIR; then ``. DIR/env.sh``.

The folder gets ``site`` (PyTorch's wheel, unpacked), ``headers`` (of CUDA, by NVIDIA's wheels), ``lib`` (the emulated
libraries) and ``env.sh``. Each is made under another name and renamed when it is whole, so what was interrupted is
made again, and what is there stays as it is while processes use it. Exit status 69 says that this machine cannot
build it: no download, no compiler.
"""

from __future__ import annotations

import collections
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

TORCH = "2.11.0"
WHEELS = (f"torch=={TORCH}",)  # by name and version: the index has CUDA's build of this one
HEADERS = ("nvidia-cuda-runtime==13.0.*", "nvidia-cuda-crt==13.0.*")
SOURCES = Path(__file__).resolve().parent / "card"
UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h

LIBRARIES = {  # by the prefix of their functions' names; the longest one counts
    "cublas": "libcublas.so.13",
    "cublasLt": "libcublasLt.so.13",
    "cuda": "libcudart.so.13",
    "__cuda": "libcudart.so.13",
    "cudnn": "libcudnn.so.9",
    "cufft": "libcufft.so.12",
    "cuFile": "libcufile.so.0",
    "cupti": "libcupti.so.13",
    "curand": "libcurand.so.10",
    "cusolver": "libcusolver.so.12",
    "cusparse": "libcusparse.so.12",
    "cusparseLt": "libcusparseLt.so.0",
    "nccl": "libnccl.so.2",
    "nvrtc": "libnvrtc.so.13",
    "nvshmem": "libnvshmem_host.so.3",
    "cu": "libcuda.so.1",
}
OWN_SOURCES = {"libcudart.so.13": "runtime.c", "libcuda.so.1": "driver.c"}
NVML = "libnvidia-ml.so.1"
PREFIX = re.compile("|".join(sorted(LIBRARIES, key=len, reverse=True)))


class Unavailable(Exception):
    """This machine cannot build it, whatever the sources say."""


def build(folder: Path) -> None:
    """Makes what is missing, or of other sources.

    Raises:
        Unavailable: no compiler, or a download failed.
    """
    for tool in ("gcc", "nm"):
        if not shutil.which(tool):
            raise Unavailable(f"{tool} is missing: install gcc and binutils")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = sys.implementation.cache_tag
        make(folder / "site", f"{TORCH} {python}", lambda place: unpack(WHEELS, place))
        make(folder / "headers", " ".join(HEADERS), lambda place: unpack(HEADERS, place))
        made_of = b"".join(file.read_bytes() for file in (Path(__file__), *sorted(SOURCES.iterdir())))
        sources = hashlib.sha256(made_of).hexdigest()
        make(folder / "lib", f"{sources} {TORCH} {python}", lambda place: compile_all(folder, place))
        (folder / "env.sh.new").write_text(environment(folder))
        os.replace(folder / "env.sh.new", folder / "env.sh")


def make(place: Path, made_of: str, fill: Callable[[Path], None]) -> None:
    """Fills a folder, unless it is there and of the same; ``made_of`` in it says of what."""
    stamp = place / "made_of"
    if stamp.is_file() and stamp.read_text() == made_of:
        return
    for old in place.parent.glob(f"{place.name}.*-*"):  # of a build that was interrupted: we hold the lock
        shutil.rmtree(old)
    new = Path(tempfile.mkdtemp(prefix=f"{place.name}.new-", dir=place.parent))
    fill(new)
    (new / "made_of").write_text(made_of)
    if place.exists():
        place.rename(Path(tempfile.mkdtemp(prefix=f"{place.name}.old-", dir=place.parent)) / place.name)
    new.rename(place)
    for old in place.parent.glob(f"{place.name}.old-*"):
        shutil.rmtree(old)


def unpack(requirements: Iterable[str], place: Path) -> None:
    """Downloads wheels, without what they depend on, and unpacks them into a folder."""
    wheels = place / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "-d", str(wheels)]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        said = (errors or done.stderr.split("\n") or ["?"])[-1]
        raise Unavailable(f"pip download {' '.join(requirements)} failed: {said.strip()}")
    for wheel in sorted(wheels.iterdir()):
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(place)
        except (zipfile.BadZipFile, EOFError) as error:
            raise Unavailable(f"{wheel.name} is damaged ({error}): build once more") from error
    shutil.rmtree(wheels)


def compile_all(folder: Path, place: Path) -> None:
    """Compiles every library that PyTorch's CUDA build asks for, and NVML."""
    torch = list((folder / "site/torch/lib").glob("*.so"))
    if not any(file.name == "libtorch_cuda.so" for file in torch):
        raise Unavailable(f"torch {TORCH} of this machine's package index is no CUDA build")
    include = folder / "headers/nvidia/cu13/include"
    work = place / "work"
    work.mkdir()
    wanted, versions = undefined(torch)
    for library in sorted({*LIBRARIES.values()}):
        names = wanted[library]
        made = compile_one(SOURCES / OWN_SOURCES.get(library, "libraries.c"), include, work)
        own = defined(made) & names
        script = work / f"{library}.map"
        script.write_text(
            f"{versions.get(library, '')} {{ global: {'; '.join(sorted(names) or ['none'])}; local: *; }};\n"
        )
        rest = work / f"{library}.c"
        rest.write_text("".join(f"long {name}(void) {{ return 0; }}\n" for name in sorted(names - own)))
        link(place / library, [rest, made], f"-Wl,--version-script={script}")
    link(place / NVML, [compile_one(SOURCES / "nvml.c", include, work)])
    shutil.rmtree(work)


def undefined(files: Iterable[Path]) -> tuple[dict[str, set[str]], dict[str, str]]:
    """Which functions PyTorch wants of each library, and the version that it asks for with them, if any."""
    wanted: dict[str, set[str]] = collections.defaultdict(set)
    versions: dict[str, str] = {}
    for file in files:
        for symbol in symbols(file, "--dynamic", "--undefined-only"):
            name, _, version = symbol.partition("@")
            found = PREFIX.match(name)
            # Only of "cu" is the next letter a capital in all of the driver's functions, and not in "cut" or "cuda".
            if found and (found[0] != "cu" or name[2:3].isupper()):
                library = LIBRARIES[found[0]]
                wanted[library].add(name)
                if version:
                    versions[library] = version.lstrip("@")
    return wanted, versions


def defined(file: Path) -> set[str]:
    return set(symbols(file, "--extern-only", "--defined-only"))


def symbols(file: Path, *options: str) -> list[str]:
    listed = subprocess.run(["nm", *options, str(file)], capture_output=True, text=True, check=True).stdout
    return [line.split()[-1] for line in listed.splitlines() if line]


def compile_one(source: Path, include: Path, work: Path) -> Path:
    made = work / f"{source.stem}.o"
    if not made.exists():
        # What an emulated function does not use of its arguments is no mistake.
        warnings = ("-Wall", "-Werror", "-Wno-unused-parameter")
        gcc("-c", "-fPIC", "-O1", "-fvisibility=hidden", *warnings, f"-I{include}", "-o", made, source)
    return made


def link(library: Path, files: Iterable[Path], *options: str) -> None:
    gcc("-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{library.name}", *options, "-o", library, *files)


def gcc(*arguments: str | Path) -> None:
    subprocess.run(["gcc", *map(str, arguments)], check=True)


def environment(folder: Path) -> str:
    """The text of env.sh: what a process needs to run on the emulated card."""
    quoted = shlex.quote(str(folder))
    return (
        "# Made by tests/emulated_cuda/build.py, to be sourced: processes started after it run on an emulated card.\n"
        f"export EMULATED_GPU={quoted}\n"
        "export PYTHONPATH=$EMULATED_GPU/site${PYTHONPATH:+:$PYTHONPATH}\n"
        "export LD_LIBRARY_PATH=$EMULATED_GPU/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\n"
        "export EMULATED_GPU_STATE=${EMULATED_GPU_STATE:-$EMULATED_GPU/state}\n"
    )


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: scripts/emulated_gpu DIR", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1]).resolve()
    try:
        build(folder)
    except (Unavailable, OSError) as error:
        print(f"error: the emulated card cannot be built: {error}", file=sys.stderr)
        return UNAVAILABLE
    except subprocess.CalledProcessError as error:
        print(f"error: {error.cmd[0]} failed, see above", file=sys.stderr)
        return 1
    print(f"ready: . {shlex.quote(str(folder / 'env.sh'))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
