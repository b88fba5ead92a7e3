"""One streamed answer as facts: when its first and last token came, how many there were, how it ended.

The definitions of TTFT and TPOT live here and nowhere else. Pure: given the bytes of a response and when
each piece was read, it opens no socket and reads no clock. Imported by the load client and its judges.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.support.load.sse import SseParser

DECODE = msgspec.json.Decoder().decode  # a third of the whole parsing less than with the json module's


@dataclass(slots=True)
class Recording:
    """A response as it came in: kept while the load runs, and parsed when nothing is being timed.

    Attributes
    ----------
    sent_s, ended_s
        Just before the request was written; when the response had ended. Perf-counter seconds.
    pieces
        When each piece was read, and its bytes, cut wherever the network cut them.
    error
        Why the response broke; empty where it did not.
    """

    sent_s: float = 0.0
    ended_s: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    error: str = ""

    @property
    def last_s(self) -> float:
        """When something last happened: the request was sent, or a piece was read."""
        return self.pieces[-1][0] if self.pieces else self.sent_s

    @property
    def has_token(self) -> bool:
        """Whether a token has come yet."""
        return bool(self.answer().token_counts)

    @property
    def looks_broken(self) -> bool:
        """A cheap look at the end, for an early stop; `Answer.problem` is the judgement."""
        return bool(self.error) or any(b'"error"' in piece for _, piece in self.pieces[-3:])

    def answer(self) -> "Answer":
        """What the pieces say."""
        answer = Answer(self.sent_s, self.ended_s, error=self.error)
        parser = SseParser()
        for at_s, piece in self.pieces:
            for data in parser.feed(piece):
                answer.take(data, at_s)
        return answer


@dataclass(slots=True)
class Answer:
    """What one request was answered with; times are perf-counter seconds.

    Attributes
    ----------
    sent_s, ended_s
        Just before the request was written; when the response had ended.
    token_stamps_s, token_counts
        Each time further tokens arrived, and how many there were by then.
    prompt_tokens, completion_tokens
        The server's own count, from usage; None where it sent none.
    chunks
        Events that carried something of the answer.
    finish_reason
        As the server gave it, ``length`` where all the tokens asked for were made.
    done
        Whether the stream closed with ``[DONE]``.
    error
        Why it is no answer; empty where it is one.
    """

    sent_s: float = 0.0
    ended_s: float = 0.0
    token_stamps_s: list[float] = field(default_factory=list)
    token_counts: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    chunks: int = 0
    finish_reason: str = ""
    done: bool = False
    error: str = ""

    def take(self, data: bytes, at_s: float) -> None:
        """Take in the data of one event that was read at `at_s`.

        A chunk brings tokens where the server's running count rose; a chunk without a count, where it
        carries content, reasoning or a tool call. So the role-only chunk, which brings neither, is never
        the first token, and a token whose text is still empty (half a character) is.
        """
        if data == b"[DONE]":
            self.done = True
            return
        try:
            self._take_event(DECODE(data), at_s)
        except (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError):
            self.error = self.error or f"event of no known form: {data[:80]!r}"

    def _take_event(self, event: dict[str, Any], at_s: float) -> None:
        if "error" in event:
            self.error = self.error or f"error event inside the stream: {event['error']}"
            return
        usage = event.get("usage")
        if usage:
            self.prompt_tokens = int(usage["prompt_tokens"])
            self.completion_tokens = int(usage["completion_tokens"])
        choices = event["choices"]
        if not choices:
            return  # the closing usage event: it counts tokens and brings none
        choice = choices[0]
        if choice.get("finish_reason"):
            self.finish_reason = choice["finish_reason"]
        carries = _carries(choice)
        self.chunks += carries
        if usage:
            self._count(usage["completion_tokens"], at_s)
        elif carries:
            self._count(self.tokens_seen + 1, at_s)

    def _count(self, tokens: int, at_s: float) -> None:
        if tokens > self.tokens_seen:
            self.token_stamps_s.append(at_s)
            self.token_counts.append(tokens)

    @property
    def tokens_seen(self) -> int:
        """Tokens that have arrived so far."""
        return self.token_counts[-1] if self.token_counts else 0

    @property
    def ttft_s(self) -> float | None:
        """Request sent to first token, in seconds; None where none came."""
        return self.token_stamps_s[0] - self.sent_s if self.token_stamps_s else None

    @property
    def tpot_s(self) -> float | None:
        """(last token - first token) / (output tokens - 1), in seconds; None for less than two tokens."""
        if not self.completion_tokens or self.completion_tokens < 2 or not self.token_stamps_s:
            return None
        return (self.token_stamps_s[-1] - self.token_stamps_s[0]) / (self.completion_tokens - 1)

    @property
    def longest_gap_s(self) -> float:
        """The longest wait between two arrivals of tokens, in seconds: a stall shows here."""
        pairs = zip(self.token_stamps_s, self.token_stamps_s[1:], strict=False)
        return max((later - earlier for earlier, later in pairs), default=0.0)

    def tokens_by(self, at_s: float) -> int:
        """How many tokens had arrived at `at_s`."""
        arrivals = bisect_right(self.token_stamps_s, at_s)
        return self.token_counts[arrivals - 1] if arrivals else 0

    def problem(self, prompt_tokens: int, output_tokens: int) -> str:
        """Why this answer is not the one planned, or nothing.

        Parameters
        ----------
        prompt_tokens, output_tokens
            What was sent and what was asked for.
        """
        if self.error:
            return self.error
        if not self.done:
            return "stream ended without [DONE]"
        if self.completion_tokens is None:
            return "no usage"
        if self.prompt_tokens != prompt_tokens:
            return f"prompt of {self.prompt_tokens} tokens, expected {prompt_tokens}"
        if self.completion_tokens != output_tokens:
            return f"{self.completion_tokens} tokens out, expected {output_tokens}"
        if self.tokens_seen > self.completion_tokens:
            return f"usage counts {self.completion_tokens} tokens, {self.tokens_seen} arrived"
        if self.finish_reason != "length":
            return f"finish_reason {self.finish_reason!r}, expected 'length'"
        return ""


def _carries(choice: dict[str, Any]) -> bool:
    """Whether a choice brings content, reasoning or a tool call, in either of the two dialects."""
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    if not delta:
        return False
    parts = ("content", "reasoning", "reasoning_content", "tool_calls")
    return any(delta.get(part) for part in parts)
