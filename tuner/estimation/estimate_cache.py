"""What decides an estimate, and a cache of traced ones: what was planned before needs no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from hashlib import blake2b
from importlib import metadata
from pathlib import Path

import platformdirs

from tuner.machine.safe_files import MOST_BYTES, regular, replacing
from tuner.trial import MAX_BATCH, Config, MemoryEstimate
from tuner.values import config_key
from tuner.workloads.base import Trainable

WITHOUT_MEMORY = ("lr", "epochs", MAX_BATCH)  # parameters that no allocation depends on
FILE = "estimates.json"
KEPT = 1_000  # estimates: the latest
PACKAGE = Path(__file__).parents[1]


def memory_key(config: Config) -> str:
    """The parameters that decide a configuration's memory. Configurations with the same key share an estimate."""
    return config_key(config, WITHOUT_MEMORY)


def cached(
    trace: Callable[[], MemoryEstimate], workload: Trainable, config: Config, data: object, *others: object
) -> MemoryEstimate:
    """What ``trace`` returns, or returned before for an equal configuration, equal data and equal ``others``.

    A change of a package or of tuner's own files makes every earlier estimate void. The cache has only built-in
    workloads, as nothing tells what a user's code depends on. Without a cache that can be read, it is traced.
    """
    if not type(workload).__module__.startswith(f"{PACKAGE.name}."):
        return trace()
    from tuner.workloads.pickling import fingerprint

    path = Path(platformdirs.user_cache_dir("tuner")) / FILE
    files = [_stamp(value) for value in config.values() if isinstance(value, str) and os.path.isfile(value)]
    key = _digest((type(workload).__qualname__, memory_key(config), files, others, _code(), fingerprint(data)))
    with suppress(KeyError, TypeError):  # it is not there, or damaged
        return MemoryEstimate(**_read(path)[key])  # type: ignore[arg-type]
    estimate = trace()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [*_read(path).items(), (key, asdict(estimate))][-KEPT:]
        with replacing(path) as file:
            file.write(json.dumps(dict(kept)).encode())
    return estimate


def _read(path: Path) -> dict[str, dict[str, object]]:
    """The estimates of the file by their keys; none if it is missing or damaged."""
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(regular(path, MOST_BYTES).read_text())
        return content if isinstance(content, dict) else {}
    return {}


def _code() -> tuple[object, ...]:
    """The versions of what is traced, and tuner's files."""
    versions = (metadata.version(name) for name in ("torch", "torch_geometric"))
    return *versions, _files()


@cache
def _files() -> tuple[tuple[str, int, int], ...]:
    """Tuner's files as they were when this process first looked at them."""
    return tuple(sorted(map(_stamp, map(str, PACKAGE.rglob("*.py")))))


def _stamp(path: str) -> tuple[str, int, int]:
    """What differs once a file has been changed."""
    status = os.stat(path)
    return path, status.st_size, status.st_mtime_ns


def _digest(content: object) -> str:
    """A digest of texts, numbers, and tuples and dataclasses of these."""
    return blake2b(repr(content).encode(), digest_size=16).hexdigest()
