"""The event parser gives the same events however the network cuts the stream."""

import pytest

from tests.support.load.sse import SseParser

STREAM = b"".join(
    (
        b": hello\n\ndata: one\n\nevent: note\ndata: two\ndata:  three\n\ndata:four\n\n",
        b"data: five\ndata: six\n\nid: 7\n\ndata: [DONE]\n\n",
    )
)
EVENTS = [b"one", b"two\n three", b"four", b"five\nsix", b"[DONE]"]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("size", range(1, len(STREAM) + 1))
def test_any_cut_gives_the_same_events(size: int, newline: bytes) -> None:
    stream = STREAM.replace(b"\n", newline)
    parser = SseParser()
    pieces = (stream[at : at + size] for at in range(0, len(stream), size))
    assert [data for piece in pieces for data in parser.feed(piece)] == EVENTS


def test_an_event_that_was_cut_off_is_no_event() -> None:
    parser = SseParser()
    assert parser.feed(b"data: one\n\ndata: tw") == [b"one"]
    assert parser.feed(b"o\n") == []
    assert parser.feed(b"\n") == [b"two"]


def test_a_newline_inside_of_data_is_not_an_end() -> None:
    assert SseParser().feed(b'data: {"text": "a\\n\\nb"}\n\n') == [b'{"text": "a\\n\\nb"}']
