"""Downloads MovieLens-100K from GroupLens into the user's cache. Its README allows research use only."""

import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.errors import DataError, option

URL = "https://files.grouplens.org/datasets/movielens/ml-100k.zip"
# As published with the size, 4,924,029 bytes, in tensorflow/datasets,
# tensorflow_datasets/url_checksums/movielens.txt (commit 1c076ac3c19c8ea83e1d1a75e0623c9a699e0d7c).
SHA256 = "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229"

_MEMBERS = ("README", "u.data", "u.user", "u.item", "u1.base", "u1.test")
_CHUNK_BYTES = 2**16


def fetch_movielens(
    cache: Path | None = None, *, url: str = URL, sha256: str = SHA256, progress: bool = True, timeout: float = 30.0
) -> Path:
    """The folder of MovieLens-100K, downloaded if it is not in the cache (by default the user's) yet.

    The archive is verified before it is unpacked, and the folder is always complete. ``progress`` shows a bar on
    stderr if that is a terminal; ``timeout`` is the maximum number of seconds without a response. Raises
    ``DataError`` if the archive cannot be downloaded, verified or stored.
    """
    if cache is None:
        import platformdirs

        cache = Path(platformdirs.user_cache_dir("tuner"))
    folder = cache / "ml-100k"
    if (folder / "u.data").is_file():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".ml-100k-") as work:
            archive = Path(work, "ml-100k.zip")
            _download(url, archive, sha256, progress, timeout)
            _unpack(archive, Path(work, "ml-100k"), url)
            _publish(Path(work, "ml-100k"), folder)
    except (OSError, http.client.HTTPException) as error:
        # OSError includes urllib's errors, a full disk and a cache that cannot be written.
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # closes the connection
        raise _refusal(url, f"failed ({error})") from error
    return folder


def _refusal(url: str, what: str) -> DataError:
    remedy = f"download it yourself, unpack it and pass {option('data', 'DIR')}"
    return DataError(f"download of {url} {what}; {remedy}")


def _download(url: str, archive: Path, sha256: str, progress: bool, timeout: float) -> None:
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=timeout) as response, archive.open("wb") as file:
        length = response.headers.get("Content-Length")
        total = int(length) if length else None
        with progress_bar("MovieLens-100K", total, shown=progress) as advance_to:
            while chunk := response.read(_CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                advance_to(file.tell())
        received = file.tell()
    if total is not None and received != total:
        raise _refusal(url, f"was cut off after {received:,} of {total:,} bytes")
    if digest.hexdigest() != sha256:
        raise _refusal(url, f"has the wrong checksum (sha256 {digest.hexdigest()}, expected {sha256})")


def _unpack(archive: Path, folder: Path, url: str) -> None:
    """Writes the expected members only, so that no other path in the archive is used."""
    folder.mkdir()
    try:
        with zipfile.ZipFile(archive) as members:
            for name in _MEMBERS:
                (folder / name).write_bytes(members.read(f"ml-100k/{name}"))
    except (zipfile.BadZipFile, KeyError) as error:
        raise _refusal(url, f"is not MovieLens-100K ({error})") from error


def _publish(unpacked: Path, folder: Path) -> None:
    try:
        os.rename(unpacked, folder)
    except OSError:
        # Another process was faster. A folder that is not empty cannot be replaced.
        if not (folder / "u.data").is_file():
            raise


@contextmanager
def progress_bar(what: str, total: float | None, *, shown: bool = True) -> Iterator[Callable[[float], None]]:
    """Yields a function that sets the bar to a number of bytes. The bar is shown on stderr, in terminals only."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda completed: bar.update(task, completed=completed)
