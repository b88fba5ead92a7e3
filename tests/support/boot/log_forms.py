"""The log lines that carry boot facts, as a table: what a line about a fact looks like, and its known forms.

Data and small converters only; `log` applies them. All whitespace is taken out of a line before a form is
tried, since lines are wrapped anywhere: write the forms as one reads them, the table squeezes them too.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

KNOWN_VERSIONS = "0.31 (ROCm) and 0.32 (CPU)"

WORTH_A_WARNING = re.compile(
    r"fall(s|ing)?[ -]?back|untuned|not tuned|sub-?optimal|default (MoE )?config|not optimized|"
    r"performance|dequant|emulat|unsupported|not supported|disabl",
    re.IGNORECASE,
)

Entries = list[dict[str, str]]
Put = Callable[[Any, Entries], None]


@dataclass(frozen=True)
class Form:
    """How a fact is logged.

    Attributes
    ----------
    fact
        Name of the fact, for messages.
    about
        A line that this matches speaks of the fact; if no form matches it, the form is unknown.
    forms
        The known forms; their named groups are the values.
    put
        Stores all entries found in the facts.
    needed
        Whether every boot has such a line.
    """

    fact: str
    about: re.Pattern[str]
    forms: tuple[re.Pattern[str], ...]
    put: Put
    needed: bool = False

    def is_about(self, squeezed: str) -> bool:
        """Whether a line without whitespace speaks of this fact."""
        return self.about.search(squeezed) is not None

    def search(self, squeezed: str) -> dict[str, str] | None:
        """The values in a line without whitespace; None where no form matches."""
        matches = (form.search(squeezed) for form in self.forms)
        return next((match.groupdict() for match in matches if match), None)


def _squeeze(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", ""))


def form(fact: str, about: str, *forms: str, put: Put, needed: bool = False) -> Form:
    """A row of the table, from patterns written with their spaces."""
    return Form(fact, _squeeze(about), tuple(map(_squeeze, forms)), put, needed)


def _set(**converters: Callable[[str], object]) -> Put:
    """Stores the last entry's groups under their names, converted."""

    def put(facts: Any, entries: Entries) -> None:
        for name, convert in converters.items():
            setattr(facts, name, convert(entries[-1][name]))

    return put


def _count(text: str) -> int:
    return int(text.replace(",", ""))


def _put_kernels(facts: Any, entries: Entries) -> None:
    schemes = (entry.get("scheme") or "" for entry in entries)
    named = ("mixed-precision linear" if scheme == "mixed-precisionlinear" else scheme for scheme in schemes)
    facts.kernels = tuple((entry["kernel"], scheme) for entry, scheme in zip(entries, named, strict=True))


def _put_attention(facts: Any, entries: Entries) -> None:
    facts.attention = tuple(sorted({name for entry in entries for name in entry["backend"].split(",")}))


def _put_plugin(facts: Any, entries: Entries) -> None:
    active = {entry["part"] for entry in entries}
    facts.lookup_plugin, facts.product_plugin = "embeddinglookup" in active, "products" in active


SCHEME = r"(?P<scheme>CompressedTensors(?:WNA16|W8A8Int8|W8A8Fp8))"

FORMS = (
    form(
        "the engine's settings",
        r"LLM engine \(v",
        r"Initializing a V1 LLM engine \(v(?P<version>[\w.+]+)\) with config:"
        r".*?, quantization=(?P<quantization>[\w-]+),.*? enable_prefix_caching=(?P<prefix_caching>True|False),"
        r".*? 'cudagraph_mode': <CUDAGraphMode\.(?P<graph_mode>\w+):",
        put=_set(version=str, quantization=str, prefix_caching="True".__eq__, graph_mode=str),
        needed=True,
    ),
    form(
        "the linear kernel",
        r"LinearKernel|MoEMethod",
        r"Using (?P<kernel>\w+Kernel) for " + SCHEME + "$",
        r"Selected (?P<kernel>\w+Kernel) for " + SCHEME + "$",
        r"Using (?P<kernel>\w+Kernel) for (?P<scheme>mixed-precision linear)$",
        r"Using (?P<kernel>CompressedTensors\w+MoEMethod)$",
        put=_put_kernels,
    ),
    form(
        "attention",
        r"^Using [\w.]+ backend(?! for)|^quantkit: attention",
        r"^quantkit: attention backends: (?P<backend>[\w,]+)\.$",
        r"^Using (?:AttentionBackendEnum\.)?(?P<backend>[A-Z][A-Z0-9_]+) (?:attention )?backend"
        r"(?:\.$| out of potential| \(selected)",
        put=_put_attention,
        needed=True,
    ),
    form(
        "loaded memory",
        r"Model loading took",
        r"Model loading took (?P<loaded_gib>[\d.]+) GiB memory and [\d.]+ seconds",
        put=_set(loaded_gib=float),
    ),
    form(
        "parameters held",
        r"quantkit: parameters held",
        r"quantkit: parameters held after load: (?P<loaded_bytes>\d+) bytes in \d+ tensors, "
        r"(?P<prepacked_bytes>\d+) bytes of them in prepacked kernels",
        put=_set(loaded_bytes=int, prepacked_bytes=int),
    ),
    form(
        "buffers held",
        r"quantkit: buffers held",
        r"quantkit: buffers held after load: (?P<buffer_bytes>\d+) bytes",
        put=_set(buffer_bytes=int),
    ),
    form(
        "the KV cache's size",
        r"KV cache size",
        r"(?:CPU|GPU) KV cache size: (?P<kv_tokens>[\d,]+) tokens, Maximum concurrency for "
        r"(?P<kv_context>[\d,]+) tokens per request: (?P<kv_concurrency>[\d.]+)x",
        put=_set(kv_tokens=_count, kv_context=_count, kv_concurrency=float),
        needed=True,
    ),
    form(
        "the plugin",
        r"quantkit: int4",
        r"^quantkit: int4 (?P<part>embedding lookup|products) in torch (?:is|are) active",
        put=_put_plugin,
    ),
)
