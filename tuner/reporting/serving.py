"""Serves the page of a running study on the loopback address."""

import errno
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from tuner.errors import ParameterError, TunerError, one_line, printable
from tuner.records.files import ATTEMPTS, EPOCHS, STUDY
from tuner.records.journal import is_open
from tuner.reporting.page.document import Page, page_html
from tuner.trial import LOOPBACK


class LivePage:
    """A study's page, which is updated when the study's files change."""

    def __init__(self, folder: Path, load: Callable[[], Page]) -> None:
        self.folder = folder
        self._load = load

    def version(self) -> str:
        """A text that changes whenever the study's files do, or its process ends."""
        stamps = [_stamp(self.folder / name) for name in (STUDY, ATTEMPTS, EPOCHS)]
        return " ".join([*stamps, "open" if is_open(self.folder / ATTEMPTS) else "ended"])

    def page(self) -> str:
        """The whole page."""
        version = self.version()  # before the study is read, so that no later change is missed
        return page_html(self._load(), live=version)

    def main(self) -> str:
        """The part that changes."""
        return self._load().main


def _stamp(path: Path) -> str:
    try:
        about = path.stat()
    except OSError:
        return "-"
    return f"{about.st_mtime_ns}.{about.st_size}"


def make_server(page: LivePage, port: int) -> ThreadingHTTPServer:
    """A server of the page that only this machine can reach; port 0 means any free one.

    Raises:
        InputError: the port is in use or not allowed.
    """

    class Handler(_Handler):
        live = page

    try:
        return _Server((LOOPBACK, port), Handler)
    except OSError as error:
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise ParameterError("port", port, why, "give another one") from error


def serve(page: LivePage, port: int) -> None:
    """Prints the address of the page, and serves it until Ctrl-C."""
    with make_server(page, port) as server:
        print(printable(f"{page.folder}: http://{LOOPBACK}:{server.server_port}/ (Ctrl-C ends it)"), flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print(flush=True)


class _Server(ThreadingHTTPServer):
    """A server that prints no tracebacks."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Prints a line if an answer could not be sent, unless the browser closed the connection."""
        error = sys.exception()
        if not isinstance(error, ConnectionError):
            print(printable(_unexpected(error)), file=sys.stderr, flush=True)


class _Handler(BaseHTTPRequestHandler):
    """Serves three paths. The Host header must name this machine, so that other sites' pages cannot read a study."""

    live: LivePage

    def do_GET(self) -> None:
        """Sends the page, its changing part, or the version of the study."""
        if not _names_this_machine(self.headers.get("Host", "")):
            self._send(403, "only for this machine", "text/plain")
            return
        answers = {"/": self.live.page, "/main": self.live.main, "/version": self.live.version}
        path = self.path.partition("?")[0]
        answer = answers.get(path)
        if answer is None:
            self._send(404, "there is no such page", "text/plain")
            return
        try:
            text = answer()
        except Exception as error:  # the page shows it in a line, and the server continues
            self._send(500, str(error) if isinstance(error, TunerError) else _unexpected(error), "text/plain")
            return
        self._send(200, text, "text/plain" if path == "/version" else "text/html")

    def _send(self, code: int, text: str, kind: str) -> None:
        content = text.encode(errors="replace")
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


def _unexpected(error: BaseException | None) -> str:
    return f"unexpected {type(error).__name__}: {one_line(error)}: please report it"


def _names_this_machine(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").hostname in (LOOPBACK, "localhost")
    except ValueError:  # not an address, such as "[::1"
        return False
