"""The download arrives whole and verified, or leaves nothing; served from this machine."""

from __future__ import annotations

import hashlib
import io
import socket
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tuner.datasets import download
from tuner.datasets.download import fetch_movielens
from tuner.errors import DataError


def archive(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as members:
        for name in names:
            members.writestr(zipfile.ZipInfo(name), f"text of {name}")  # without a date: the same bytes each time
    return file.getvalue()


WHOLE = archive("../evil", "ml-100k/u5.base", *(f"ml-100k/{name}" for name in download._MEMBERS))
NO_ITEMS = archive("ml-100k/u.data")


class Handler(BaseHTTPRequestHandler):
    requests = 0

    def do_GET(self) -> None:
        Handler.requests += 1
        body = {"/whole": WHOLE, "/cut": WHOLE, "/no-items": NO_ITEMS, "/text": b"hello"}.get(self.path)
        if body is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:100] if self.path == "/cut" else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Handler.requests = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_good_archive_is_unpacked_once_and_found_again(server: str, tmp_path: Path) -> None:
    cache = tmp_path / "deep" / "cache"
    folder = fetch_movielens(cache, url=f"{server}/whole", sha256=sha256(WHOLE))
    assert (folder / "u.data").read_text() == "text of ml-100k/u.data"
    assert sorted(path.name for path in folder.iterdir()) == sorted(download._MEMBERS), "and nothing else"
    assert list(cache.iterdir()) == [folder], "no temporary file is left"
    assert fetch_movielens(cache, url=f"{server}/whole", sha256="unused") == folder
    assert Handler.requests == 1


@pytest.mark.parametrize(
    ("path", "expected", "message"),
    [
        ("whole", "0" * 64, f"has the wrong checksum .sha256 {sha256(WHOLE)}, expected 000"),
        ("cut", sha256(WHOLE), rf"was cut off after 100 of {len(WHOLE):,} bytes"),
        ("missing", "", r"failed \(HTTP Error 404: Not Found\)"),
        ("no-items", sha256(NO_ITEMS), r"is not MovieLens-100K .*ml-100k/README"),
        ("text", sha256(b"hello"), r"is not MovieLens-100K \(File is not a zip file\)"),
    ],
)
def test_a_bad_answer_is_told_and_leaves_nothing(
    path: str, expected: str, message: str, server: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        fetch_movielens(tmp_path, url=f"{server}/{path}", sha256=expected)
    assert f"{server}/{path}" in str(caught.value)
    assert "pass data='DIR'" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_no_server_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    port_that_nobody_serves = "http://127.0.0.1:9"
    with pytest.raises(DataError, match=r"127.0.0.1:9 failed .*refused.*; download it yourself"):
        fetch_movielens(tmp_path, url=port_that_nobody_serves)
    assert list(tmp_path.iterdir()) == []


def test_a_silent_server_is_given_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DataError, match="timed out"):
            fetch_movielens(tmp_path, url=url, timeout=0.1)


def test_a_cache_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(DataError, match="File exists"):
        fetch_movielens(tmp_path / "cache")


def test_the_other_process_may_have_been_faster(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faster(archive: Path, folder: Path, url: str) -> None:
        folder.mkdir()
        (tmp_path / "ml-100k").mkdir()
        (tmp_path / "ml-100k/u.data").write_text("theirs")

    monkeypatch.setattr(download, "_unpack", faster)
    folder = fetch_movielens(tmp_path, url=f"{server}/whole", sha256=sha256(WHOLE))
    assert (folder / "u.data").read_text() == "theirs"
