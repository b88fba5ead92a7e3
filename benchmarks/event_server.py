"""A loopback server that only writes events, as fast as asked: so that a client's cost is seen, not a server's.

Knows one request form and one answer, both as an engine's. `python -m benchmarks.event_server EVENTS PERIOD_S`
prints its port. Imports nothing of the project.
"""

import asyncio
import json
import sys
from collections.abc import Iterator

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
METRICS = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def event(token: int, last: int) -> bytes:
    """One token's event, with every key that vLLM 0.32 sends, as one HTTP chunk."""
    choice = {
        "index": 0,
        "text": " token",
        "logprobs": None,
        "finish_reason": "length" if token == last else None,
        "stop_reason": None,
    }
    body = {
        "id": "cmpl-0123456789abcdef0123456789abcdef",
        "object": "text_completion",
        "created": 1700000000,
        "model": "events",
        "choices": [choice],
        "usage": {"prompt_tokens": 4, "total_tokens": 4 + token, "completion_tokens": token},
    }
    return chunk(json.dumps(body).encode())


def chunk(data: bytes) -> bytes:
    """One event as one HTTP chunk."""
    line = b"data: " + data + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(line), line)


def events(count: int) -> Iterator[bytes]:
    """A whole answer, ready to be written."""
    yield from (event(token, count) for token in range(1, count + 1))
    yield chunk(b"[DONE]") + b"0\r\n\r\n"


async def answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pieces: list[bytes], period_s: float
) -> None:
    """Answer one connection's requests until it is closed."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = [
                line.split(b":")[1] for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"
            ]
            await reader.readexactly(int(lengths[0]) if lengths else 0)
            if head.startswith(b"GET"):
                writer.write(METRICS)
                continue
            writer.write(HEAD)
            await stream(writer, pieces, period_s)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def stream(writer: asyncio.StreamWriter, pieces: list[bytes], period_s: float) -> None:
    """Write the pieces, one each period, or as fast as they are read."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    for index, piece in enumerate(pieces):
        await asyncio.sleep(max(0.0, begun + index * period_s - clock()) if period_s else 0)
        writer.write(piece)
        await writer.drain()


async def main(count: int, period_s: float) -> None:
    """Serve until killed."""
    pieces = list(events(count))
    server = await asyncio.start_server(lambda r, w: answer(r, w, pieces, period_s), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
