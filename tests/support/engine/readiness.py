"""When a server is ready: alive, healthy, ours, serving our model, one token made. One deadline for it all.

Knows HTTP and the engine's interface; reads no log. Imported by `serving` and the judge's tests.
"""

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Protocol

from tests.support.engine.base import (
    ForeignServer,
    NoFirstToken,
    Running,
    ServerLoops,
    ServerSlow,
    ServerUnhealthy,
    WrongModel,
)

POLL_S = 0.1
STARTED = "Application startup complete"
DIES_S = 10.0  # vLLM's API server looks every 5 s whether its engine still lives, and then ends


@dataclass(frozen=True)
class Patience:
    """How long each stage may take, in seconds."""

    boot_s: float = 600.0
    unhealthy_s: float = 20.0  # a healthy server's 503 while starting lasts less
    first_token_s: float = 120.0


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; status 0 says that there was none."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body as JSON; None where it is not."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def ask(url: str, body: object = None, timeout_s: float = 5.0) -> Answer:
    """GET, or POST of JSON; every outcome is an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with _opened(request, timeout_s) as response:
            return Answer(response.status, response.read())
    except (OSError, HTTPException) as broken:
        return Answer(0, str(broken).encode())


def _opened(request: urllib.request.Request, timeout_s: float) -> Any:
    """The response, whatever its status."""
    try:
        return urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as refused:
        return refused


def wait_ready(server: Running, patience: Patience = Patience()) -> float:
    """Seconds from now until the server is ready.

    Raises
    ------
    ServerError
        One leaf for each way in which it is not, as soon as it can be known.
    """
    begun = time.monotonic()
    _wait_healthy(server, begun, patience)
    _check_model(server)
    _first_token(server, patience)
    return time.monotonic() - begun


def _wait_healthy(server: Running, begun: float, patience: Patience) -> None:
    name, log = server.launch.name, server.launch.log
    answered: float | None = None
    while time.monotonic() - begun < patience.boot_s:
        server.alive()
        if log.exists() and log.read_bytes().count(STARTED.encode()) > 1:
            raise ServerLoops(f"server {name} starts again and again", log=log)
        health = ask(f"{server.base_url}/health")
        if health.status and not server.owns_port():
            server.alive()
            raise ForeignServer(f"server {name}: another one answers on {server.base_url}", log=log)
        if health.status == 200:
            return
        if health.status:
            answered = answered or time.monotonic()
            if health.status != 503 or time.monotonic() - answered > patience.unhealthy_s:
                raise ServerUnhealthy(f"/health of server {name}", got=health.status, expected=200, log=log)
        time.sleep(POLL_S)
    raise ServerSlow(f"server {name} is not ready", expected=f"ready in {patience.boot_s:g} s", log=log)


def _check_model(server: Running) -> None:
    listed = ask(f"{server.base_url}/v1/models").json()
    data = listed.get("data") if isinstance(listed, dict) else None
    entries = data if isinstance(data, list) else []
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    if names != [server.launch.model]:
        raise WrongModel(
            f"/v1/models of server {server.launch.name}",
            got=names,
            expected=[server.launch.model],
            log=server.launch.log,
        )


def _first_token(server: Running, patience: Patience) -> None:
    body = {"model": server.launch.model, "prompt": "1", "max_tokens": 1, "temperature": 0}
    answer = ask(f"{server.base_url}/v1/completions", body, patience.first_token_s)
    made = answer.json()
    usage = made.get("usage") if isinstance(made, dict) else None
    if answer.status == 200 and isinstance(usage, dict) and usage.get("completion_tokens") == 1:
        return
    see_whether_it_died(server)
    raise NoFirstToken(
        f"first token of server {server.launch.name}",
        got=f"{answer.status}: {answer.body[:200]!r}",
        expected="one token",
        log=server.launch.log,
    )


class Alive(Protocol):
    """A server that can be asked whether its process lives."""

    @property
    def base_url(self) -> str:
        """Its root."""

    def alive(self) -> None:
        """Raise where it does not."""


def see_whether_it_died(server: Alive, seconds: float = DIES_S) -> None:
    """Return where a server is healthy, or still not dead after so many seconds.

    Of a server that dies an answer breaks first; that its process is gone can be seen only later.

    Raises
    ------
    ServerDied
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        server.alive()
        if ask(f"{server.base_url}/health").status == 200:
            return
        time.sleep(POLL_S)
