"""A tiny docker engine with one container, which can refuse everything, or go away. Standard library only.

Speaks the few words of docker's API that the engine under test does. Imported by the judge's tests.
"""

import json
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

STDOUT = 1
SAID = b"INFO: up\n"
LATE_S = 0.2  # what a container says last comes after its end


class Daemon(ThreadingHTTPServer):
    """The engine, and what it was asked.

    Attributes
    ----------
    image, container
        What it says of them; a container of None is not there. Another is listed, and gone when it is looked at.
    refuses
        Ends of paths that are answered with an error, and that error's words; an empty end is every path's.
    asked
        Method, path without the version, query and body of each request.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.image: dict[str, Any] | None = {"Id": "i", "RepoDigests": ["REF@sha256:" + 64 * "0"]}
        self.container: dict[str, Any] | None = {
            "Id": "c", "Name": "/a-container", "Config": {"Tty": False, "Labels": {}},
            "State": {"Status": "running", "ExitCode": 0}, "NetworkSettings": {"Ports": {}},
        }  # fmt: skip
        self.refuses: dict[str, str] = {}
        self.asked: list[tuple[str, str, dict[str, list[str]], Any]] = []

    @property
    def url(self) -> str:
        """Where a client finds it."""
        return f"tcp://127.0.0.1:{self.server_address[1]}"

    def leave(self) -> None:
        """Be gone."""
        self.shutdown()
        self.server_close()

    def answer(self, method: str, path: str) -> tuple[int, object]:
        """Status and body."""
        for end, words in self.refuses.items():
            if path.endswith(end):
                return 500, {"message": words}
        if path == "/version":
            return 200, {"ApiVersion": "1.44"}
        if path.startswith("/images/"):
            return (200, self.image) if self.image else (404, {"message": "No such image"})
        if path == "/containers/create":
            return 201, {"Id": "c"}
        if path == "/containers/json":
            return 200, [{"Id": "c"}, {"Id": "gone"}] if self.container else []
        if self.container is None or path.startswith("/containers/gone"):
            return 404, {"message": "No such container: c"}
        if path.endswith("/top"):
            return 200, {"Titles": ["UID", "PID", "CMD"], "Processes": [["0", "77", "a server"]]}
        if path.endswith("/logs"):
            return 200, struct.pack(">BxxxL", STDOUT, len(SAID)) + SAID
        return (200, self.container) if path.endswith("/json") else (204, b"")


class _Handler(BaseHTTPRequestHandler):
    server: Daemon

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _any(self) -> None:
        parts = urlsplit(self.path)
        path = "/" + parts.path.split("/", 2)[2] if parts.path.startswith("/v1") else parts.path
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.asked.append((self.command, path, parse_qs(parts.query), json.loads(body or "null")))
        status, said = self.server.answer(self.command, path)
        content = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        if status != 204:
            self.send_header("content-length", str(len(content)))
        self.end_headers()
        if path.endswith("/logs"):
            time.sleep(LATE_S)
        self.wfile.write(content)

    def do_GET(self) -> None:
        self._any()

    def do_POST(self) -> None:
        self._any()

    def do_DELETE(self) -> None:
        self._any()


@contextmanager
def daemon() -> Iterator[Daemon]:
    """A tiny engine, for as long as the context lasts."""
    ours = Daemon()
    thread = threading.Thread(target=ours.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield ours
    finally:
        ours.leave()
        thread.join()
