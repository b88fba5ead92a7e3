"""What is known of a server that is not ready, and when: a server and a clock of our own; and every HTTP answer."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.engine import readiness
from tests.support.engine.base import (
    ForeignServer,
    Launch,
    NoFirstToken,
    Running,
    ServerDied,
    ServerError,
    ServerLoops,
    ServerSlow,
    ServerUnhealthy,
    WrongModel,
    tail,
)
from tests.support.engine.process import free_port
from tests.support.engine.readiness import STARTED, Answer, Patience, ask, see_whether_it_died, wait_ready

GOOD = {
    "/v1/models": Answer(200, b'{"data": [{"id": "quantkit-fp8"}]}'),
    "/v1/completions": Answer(200, b'{"usage": {"completion_tokens": 1}}'),
}


class Pretend(Running):
    """A server that says of itself what it is told to."""

    def __init__(self, folder: Path, lives_s: float, ours: bool) -> None:
        super().__init__(Launch("fp8", folder, "quantkit-fp8", folder / "boot.log"), "http://nowhere")
        self.lives_s, self.ours = lives_s, ours
        self.clock_s = self.waited_s = 0.0

    def alive(self) -> None:
        if self.clock_s >= self.lives_s:
            raise ServerDied("server fp8 ended", log=self.launch.log)

    def owns_port(self) -> bool:
        return self.ours and self.clock_s < self.lives_s

    def pids(self) -> tuple[int, ...]:
        return ()

    def stop(self) -> None:
        return


Make = Callable[..., Pretend]


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a server, by its answers to /health (one a poll, then the last for ever) and to other paths."""

    def make(
        *health: int, lives_s: float = 1e9, ours: bool = True, asked_s: float = 0, **other: Answer
    ) -> Pretend:
        server = Pretend(tmp_path, lives_s, ours)
        answers = chain(health, repeat(health[-1]))
        others = {**GOOD, **{f"/v1/{name}": answer for name, answer in other.items()}}

        def answer(url: str, body: object = None, timeout_s: float = 5) -> Answer:
            server.clock_s += asked_s
            server.waited_s = timeout_s
            path = url.removeprefix(server.base_url)
            return Answer(next(answers), b"") if path == "/health" else others[path]

        def sleep(seconds: float) -> None:
            server.clock_s += seconds

        clock = SimpleNamespace(monotonic=lambda: server.clock_s + 1, sleep=sleep)
        monkeypatch.setattr(readiness, "ask", answer)
        monkeypatch.setattr(readiness, "time", clock)
        return server

    return make


def test_ready_as_soon_as_it_is(pretend: Make) -> None:
    """No answer yet, then 503 while starting, then well: and the seconds that it took."""
    assert wait_ready(pretend(*[0] * 50, *[503] * 100, 200)) == pytest.approx(15)


UNREADY: dict[str, tuple[tuple[int, ...], dict[str, float], type[ServerError], float]] = {
    "another status": ((404,), {}, ServerUnhealthy, 0),
    "503 for ever": ((*[0] * 300, 503), {}, ServerUnhealthy, 50),
    "no answer": ((0,), {}, ServerSlow, 600),
    "dead": ((0,), {"lives_s": 7}, ServerDied, 7),
    "another's": ((200,), {"ours": False}, ForeignServer, 0),
    "another's that is not well": ((503,), {"ours": False}, ForeignServer, 0),
    "dead when it had answered": ((0, 503), {"lives_s": 2, "asked_s": 1.5}, ServerDied, 3.1),
}


@pytest.mark.parametrize(("health", "how", "error", "after_s"), UNREADY.values(), ids=UNREADY)
def test_why_it_is_not_ready_and_when_that_is_known(
    pretend: Make, health: tuple[int, ...], how: dict[str, float], error: type[ServerError], after_s: float
) -> None:
    server = pretend(*health, **how)
    with pytest.raises(error):
        wait_ready(server)
    assert server.clock_s == pytest.approx(after_s, abs=0.3)


@pytest.mark.parametrize(("starts", "loops"), [(1, False), (2, True)])
def test_a_second_start_is_one_too_many(pretend: Make, starts: int, loops: bool) -> None:
    server = pretend(200)
    server.launch.log.write_text(f"INFO: {STARTED}.\n" * starts)
    if not loops:
        wait_ready(server)
        return
    with pytest.raises(ServerLoops):
        wait_ready(server)


LISTS = (
    *("{broken", "[]", "{}", '{"data": null}', '{"data": 5}', '{"data": ["quantkit-fp8"]}'),
    '{"data": [{"id": "quantkit-fp8"}, {"id": "b"}]}',
)


@pytest.mark.parametrize("listed", LISTS)
def test_only_our_model_is_served(pretend: Make, listed: str) -> None:
    with pytest.raises(WrongModel, match=r"expected \['quantkit-fp8'\]"):
        wait_ready(pretend(200, models=Answer(200, listed.encode())))


@pytest.mark.parametrize(
    "made",
    [
        "{broken",
        "[]",
        "{}",
        '{"usage": 1}',
        '{"usage": {"completion_tokens": 0}}',
        '{"usage": {"completion_tokens": 1}}',  # of a refusal: no token came
    ],
)
def test_one_token_is_made(pretend: Make, made: str) -> None:
    with pytest.raises(NoFirstToken, match="got 500: b"):
        wait_ready(pretend(200, completions=Answer(500, made.encode())))


def test_what_dies_over_its_first_token_died(pretend: Make) -> None:
    """Its answer breaks before its process ends."""
    with pytest.raises(ServerDied):
        wait_ready(pretend(200, 0, lives_s=3, completions=Answer(0, b"reset")))


@pytest.mark.parametrize(
    ("health", "lives_s", "dies", "after_s"),
    [
        ((200,), 1e9, False, 0),
        ((200,), 0, True, 0),
        ((503,), 3, True, 3),
        ((0, 0, 200), 1e9, False, 0.2),
        ((0,), 1e9, False, 10),
    ],
)
def test_whether_it_died_is_known_within_seconds(
    pretend: Make, health: tuple[int, ...], lives_s: float, dies: bool, after_s: float
) -> None:
    """Another's answer on a dead server's port is no life."""
    server = pretend(*health, lives_s=lives_s)
    if dies:
        with pytest.raises(ServerDied):
            see_whether_it_died(server)
    else:
        see_whether_it_died(server)
    assert server.clock_s == pytest.approx(after_s, abs=0.15)


@contextmanager
def saying(words: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Address of a server that says these words to one client, whatever it asks, and what that asked."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as client:
                while not heard or not heard[0].endswith(b"\r\n\r\n" if heard[0][:3] == b"GET" else b"}"):
                    heard[:] = [b"".join(heard) + client.recv(4096)]
                client.sendall(words)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/health", heard
        thread.join()


HALF = Answer(0, b"IncompleteRead(2 bytes read, 7 more expected)")
SAID: dict[str, tuple[bytes, Answer]] = {
    "well": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", Answer(200, b"{}")),
    "refused": (b"HTTP/1.1 503 no\r\ncontent-length: 3\r\n\r\nwhy", Answer(503, b"why")),
    "nothing": (b"", Answer(0, b"Remote end closed connection without response")),
    "not HTTP": (b"SSH-2.0-OpenSSH\r\n", Answer(0, b"SSH-2.0-OpenSSH\r\n")),
    "half": (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", HALF),
    "half a refusal": (b"HTTP/1.1 500 no\r\ncontent-length: 9\r\n\r\n{}", HALF),
}  # fmt: skip


@pytest.mark.parametrize(("words", "answer"), SAID.values(), ids=SAID)
def test_every_outcome_is_an_answer(words: bytes, answer: Answer) -> None:
    with saying(words) as (url, _):
        assert ask(url) == answer


def test_nobody_there_is_an_answer_too() -> None:
    assert ask(f"http://127.0.0.1:{free_port()}/health").status == 0


def test_what_is_asked() -> None:
    """A question without a body is a GET; one with a body is JSON."""
    with saying(SAID["well"][0]) as (url, heard):
        assert ask(url).json() == {}
    assert heard[0].startswith(b"GET /health ")
    with saying(SAID["well"][0]) as (url, heard):
        ask(url, {"prompt": "1"})
    assert heard[0].startswith(b"POST /health ")
    assert b"content-type: application/json" in heard[0].lower()
    assert json.loads(heard[0].rpartition(b"\r\n\r\n")[2]) == {"prompt": "1"}


def test_the_last_lines_of_a_log(tmp_path: Path) -> None:
    """Eighty of them, however long; what is no text, and no log, are no trouble."""
    log = tmp_path / "boot.log"
    assert tail(log) == ""
    lines = [f"{line} {'x' * 1000}" for line in range(100)]
    log.write_bytes("\n".join(lines).encode() + b"\xff\n")
    assert tail(log).splitlines() == [*lines[20:-1], lines[-1] + "\ufffd"]
    assert str(ServerSlow("server fp8", log=log)).endswith(f"--- last lines of {log}\n{tail(log)}")


def test_patience_is_the_users(pretend: Make) -> None:
    """Each stage has its own."""
    server = pretend(503)
    with pytest.raises(ServerUnhealthy):
        wait_ready(server, Patience(unhealthy_s=3))
    assert server.clock_s == pytest.approx(3, abs=0.3)
    server = pretend(200)
    wait_ready(server, Patience(first_token_s=7))
    assert server.waited_s == 7
    server = pretend(0)
    with pytest.raises(ServerSlow, match="ready in 4 s"):
        wait_ready(server, Patience(boot_s=4))
