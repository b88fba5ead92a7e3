"""Server-sent events: bytes in, the data of whole events out, wherever the network cut them.

Pure: reads no socket and no clock, and does not know what the data mean. Imported by the load client
and by whoever else reads a stream.
"""


class SseParser:
    """Collects bytes until an event is whole.

    Fed with any cut of a stream, it gives the same events: lines may end in LF or CRLF, comments and
    fields other than ``data`` are dropped, and several ``data`` lines of one event are joined.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of each event that `piece` completes.

        Parameters
        ----------
        piece
            The next bytes of the stream, cut anywhere.

        Returns
        -------
        list of bytes
            One item an event, in order; an event without data gives none.
        """
        text = self._rest + piece if self._rest else piece
        if b"\r" in text:  # a CR at the very end stays, for its LF may be in the next piece
            text = text.replace(b"\r\n", b"\n")
        *events, self._rest = text.split(b"\n\n")
        return [data for event in events if (data := _data_of(event))]


def _data_of(event: bytes) -> bytes:
    if event.startswith(b"data: ") and b"\n" not in event:  # the form every engine sends
        return event[6:]
    lines = (line for line in event.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
