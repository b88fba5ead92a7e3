"""What a vLLM boot log says, as typed facts; a log line of a form that is not known is an error, not a pass.

Pure: a class that is fed with bytes. Lines may carry other prefixes and colours, be wrapped or interleaved. The
forms stand in `log_forms`; the next vLLM version is a row there. Imported by `serving` and the judge's tests.
"""

import re
from dataclasses import dataclass, field

from quantkit.errors import QuantkitError
from tests.support.boot.log_forms import FORMS, KNOWN_VERSIONS, WORTH_A_WARNING, Form

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PREFIX = re.compile(
    r"^(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d) |[\w.-]+\s+\| )+"
)  # docker's, compose's
HEADER = re.compile(
    r"(?:\((?P<process>[^()\n]*?pid=\d+)\)\s*)?"
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d"
)
PLACE = re.compile(r"^\[[^\]]+:\d+\]")  # the source file and line after a header; it may be wrapped too
SPACE = re.compile(r"\s+")
LONGEST_MESSAGE = 16_384


class UnknownLogForm(QuantkitError):
    """A line about a fact has a form that no known vLLM version writes, or the fact's line is not there."""


@dataclass
class BootFacts:
    """What one boot log says.

    Attributes
    ----------
    version
        vLLM's version.
    kernels
        Pairs of kernel class and the scheme or layer kind that it multiplies; empty for dense weights.
    attention
        Attention backends, as the engine names them.
    graph_mode, quantization, prefix_caching
        From the engine's own account of its settings.
    loaded_bytes
        Bytes of parameters held after load, by the package's plugin; None where the engine says it itself.
    loaded_gib
        GiB of memory that loading took, by the engine; None on CPU.
    buffer_bytes, prepacked_bytes
        Bytes of buffers, and of parameters that live in a kernel's own layout, by the plugin.
    kv_tokens, kv_context, kv_concurrency
        Size of the KV pool in tokens, and how many requests of the context length fit.
    lookup_plugin, product_plugin
        Whether the package's int4 embedding lookup, and its int4 product, stand in for the engine's own.
    warnings
        Warnings about fallbacks, untuned shapes and the like, each once.
    """

    version: str = ""
    kernels: tuple[tuple[str, str], ...] = ()
    attention: tuple[str, ...] = ()
    graph_mode: str = ""
    quantization: str = ""
    prefix_caching: bool | None = None
    loaded_bytes: int | None = None
    loaded_gib: float | None = None
    buffer_bytes: int | None = None
    prepacked_bytes: int | None = None
    kv_tokens: int | None = None
    kv_context: int | None = None
    kv_concurrency: float | None = None
    lookup_plugin: bool = False
    product_plugin: bool = False
    warnings: tuple[str, ...] = ()


@dataclass
class _Message:
    """A log message that may go on in the next line; kept as written, and without any whitespace."""

    level: str
    text: str = ""
    squeezed: str = ""
    known: bool = False

    def add(self, text: str) -> None:
        self.text += text + " "
        self.squeezed += SPACE.sub("", text)

    @property
    def words(self) -> str:
        """The message in one line, without the place in the source."""
        return PLACE.sub("", SPACE.sub(" ", self.text).strip()).strip()


@dataclass
class BootLog:
    """Takes a log in pieces of any size, gives its facts at the end."""

    found: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    unknown: list[tuple[str, str]] = field(default_factory=list)
    warnings: dict[str, None] = field(default_factory=dict)
    _rest: bytes = b""
    _open: dict[str, _Message] = field(default_factory=dict)
    _last: str = ""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the log."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line.decode(errors="replace"))

    def facts(self) -> BootFacts:
        """The facts of a log that is whole.

        Raises
        ------
        UnknownLogForm
            Where a line is about a fact and says it in an unknown way, or a fact has no line.
        """
        self.feed(b"\n")
        for process in list(self._open):
            self._close(process)
        return _facts(self)

    def _line(self, line: str) -> None:
        line = PREFIX.sub("", ANSI.sub("", line))
        headers = list(HEADER.finditer(line))
        ends = [*(header.start() for header in headers), len(line)]
        self._continue(line[: ends[0]])
        for header, end in zip(headers, ends[1:], strict=True):
            self._begin(header, line[header.end() : end])

    def _begin(self, header: re.Match[str], text: str) -> None:
        """Text behind a header is of its own message, and of no other."""
        self._last = header["process"] or ""
        self._close(self._last)
        message = self._open[self._last] = _Message(header["level"])
        message.known = self._match(message, text)
        message.add(text)

    def _continue(self, text: str) -> None:
        """Text without a header goes on where the last message stopped, or completes another process's."""
        if not text.strip():
            return
        last = self._open.get(self._last)
        others = (message for process, message in self._open.items() if process != self._last)
        for message in [*([last] if last else []), *others]:
            if not message.known and self._match(message, text):
                message.known = True
                return
        if last and len(last.squeezed) < LONGEST_MESSAGE:
            last.add(text)

    def _match(self, message: _Message, text: str) -> bool:
        if message.level != "INFO" or len(message.squeezed) >= LONGEST_MESSAGE:
            return False
        squeezed = PLACE.sub("", message.squeezed + SPACE.sub("", text))
        return any(self._take(form, squeezed) for form in FORMS)

    def _take(self, form: Form, squeezed: str) -> bool:
        match = form.search(squeezed)
        if match is None:
            return False
        entries = self.found.setdefault(form.fact, [])
        if match not in entries:
            entries.append(match)
        return True

    def _close(self, process: str) -> None:
        message = self._open.pop(process, None)
        if message is None:
            return
        if message.level == "WARNING" and WORTH_A_WARNING.search(message.text):
            self.warnings[message.words] = None
        if not message.known and message.level == "INFO":
            squeezed = PLACE.sub("", message.squeezed)
            self.unknown += [(form.fact, message.words[:300]) for form in FORMS if form.is_about(squeezed)]


def _facts(log: BootLog) -> BootFacts:
    for fact, line in log.unknown:
        raise UnknownLogForm(
            f"log line about {fact}", got=repr(line), expected=f"a form of vLLM {KNOWN_VERSIONS}"
        )
    facts = BootFacts(warnings=tuple(log.warnings))
    for form in FORMS:
        entries = log.found.get(form.fact, [])
        if not entries and form.needed:
            raise UnknownLogForm(
                f"log line about {form.fact}",
                got="none in the whole log",
                expected=f"a form of vLLM {KNOWN_VERSIONS}",
            )
        if entries:
            form.put(facts, entries)
    if facts.loaded_bytes is None and facts.loaded_gib is None:
        raise UnknownLogForm(
            "log line about loaded memory",
            got="none in the whole log",
            expected=f"a form of vLLM {KNOWN_VERSIONS}",
        )
    return facts
