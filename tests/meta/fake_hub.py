"""A hub on 127.0.0.1 that speaks as much of Hugging Face's protocol as a download needs, and breaks where told to.

For the judge's tests of `hub`. What it was asked is kept in `asked`.
"""

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "made/up"
# What the hub answers to a refused request: status and the code in its header.
REFUSALS = {
    "gated": (403, "GatedRepo"),
    "absent": (401, "RepoNotFound"),
    "down": (503, ""),
}


@dataclass
class Hub:
    """One repository and its moods.

    Attributes
    ----------
    refuse
        A key of REFUSALS to answer with: everything, or where gated, whether its files may be had, and they.
    mute_s
        Seconds to wait before any answer but whether the files may be had.
    break_after
        Bytes of a file after which a transfer breaks off, and how often it still will.
    listing_fails
        Whether the list of files cannot be had, though the repository can be looked up.
    moves
        Whether the branch moves to another commit once it was looked up.
    asked
        Method, path, Range and Authorization of every request.
    """

    files: Mapping[str, bytes]
    refuse: str = ""
    mute_s: float = 0.0
    break_after: int = 0
    breaks_left: int = 0
    listing_fails: bool = False
    moves: bool = False
    url: str = ""
    asked: list[tuple[str, str, str, str]] = field(default_factory=list)

    def listing(self) -> list[dict[str, object]]:
        """The files as /tree gives them."""
        return [
            {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
            for name, body in self.files.items()
        ]

    def _looked_up(self) -> int:
        return sum("/revision/" in asked[1] for asked in self.asked)

    def info(self) -> dict[str, object]:
        """The repository as /revision gives it."""
        siblings = [{"rfilename": name, "size": len(body)} for name, body in self.files.items()]
        return {
            "id": REPO,
            "sha": COMMIT if not self.moves or self._looked_up() == 1 else COMMIT[::-1],
            "siblings": siblings,
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
        }


def handler_of(hub: Hub) -> type[BaseHTTPRequestHandler]:
    """A handler that answers for the hub."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            headers.setdefault("Content_Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            headers = (self.headers.get("Range") or "", self.headers.get("Authorization") or "")
            hub.asked.append((self.command, self.path, *headers))
            path = self.path.split("?")[0]
            asks = path.endswith("/auth-check")
            time.sleep(0.0 if asks else hub.mute_s)
            if hub.refuse and (hub.refuse != "gated" or asks or "/resolve/" in path):
                status, code = REFUSALS[hub.refuse]
                return self.answer(status, b"{}", **({"X_Error_Code": code} if code else {}))
            if path == f"/api/models/{REPO}/auth-check":
                return self.answer(200, b"{}")
            if path.startswith(f"/api/models/{REPO}/tree/"):
                return self.answer(403) if hub.listing_fails else self.json(hub.listing())
            if path.startswith(f"/api/models/{REPO}"):
                known = path.rsplit("/", 1)[-1] in ("main", COMMIT, "up")
                return (
                    self.json(hub.info())
                    if known
                    else self.answer(404, b"{}", X_Error_Code="RevisionNotFound")
                )
            name = path.removeprefix(f"/{REPO}/resolve/{COMMIT}/")
            return (
                self.file(hub.files[name])
                if name in hub.files
                else self.answer(404, X_Error_Code="RepoNotFound")
            )

        def json(self, value: object) -> None:
            self.answer(200, json.dumps(value).encode(), Content_Type="application/json")

        def file(self, body: bytes) -> None:
            begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
            etag = f'"{hashlib.sha1(body).hexdigest()}"'
            common = {"X_Repo_Commit": COMMIT, "ETag": etag, "Accept_Ranges": "bytes"}
            part = body[begin:]
            if begin:
                common["Content_Range"] = f"bytes {begin}-{len(body) - 1}/{len(body)}"
            if self.command == "GET" and hub.breaks_left and len(part) > hub.break_after:
                hub.breaks_left -= 1
                self.answer(
                    206 if begin else 200, part[: hub.break_after], Content_Length=str(len(part)), **common
                )
                self.close_connection = True
                return
            self.answer(206 if begin else 200, part, **common)

    return Handler


class Server(ThreadingHTTPServer):
    """Says nothing of a client that did not wait for its answer."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub on a free port for as long as the context lasts."""
    server = Server(("127.0.0.1", 0), handler_of(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
