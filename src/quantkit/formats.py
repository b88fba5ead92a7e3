"""The table of builds: which weights are stored how. No other file knows a format by name.

Standard library only; it knows nothing of models, tensors or files. Whatever can be computed from a
record is a property of it, so that a new format is one more row in FORMATS.
"""

from dataclasses import dataclass, field

from quantkit.errors import UnknownFormat

GROUP_SIZE = 32  # q4_0 groups: 32 weights along the input dimension share one step


@dataclass(frozen=True)
class Scheme:
    """How the weights of one tensor are stored.

    Attributes
    ----------
    name
        The field's usual name, as in ``int4``.
    code_dtype, scale_dtype
        safetensors dtype tags of the codes and of the scales.
    code_max
        Largest magnitude a code may stand for; a row's scale is absmax / code_max. int4 recovers its
        step from the data instead, and its levels run from -8 to 7.
    group_size
        Weights that share a scale along the input dimension; None: a whole output row does.
    compressor
        compressed-tensors' name for the layout on disk.
    arg_type, bits
        compressed-tensors' ``type`` and ``num_bits`` of the weights.
    activations
        True: activations are quantized per token, with the same type and bits.
    """

    name: str
    code_dtype: str
    scale_dtype: str
    code_max: float
    group_size: int | None
    compressor: str
    arg_type: str
    bits: int
    activations: bool

    @property
    def packed(self) -> bool:
        """Whether eight codes share one int32 word."""
        return self.bits == 4

    @property
    def tensor_suffixes(self) -> tuple[str, ...]:
        """Names that replace ``weight`` when a module is stored in this scheme."""
        if self.packed:
            return ("weight_packed", "weight_scale", "weight_shape")
        return ("weight", "weight_scale")


INT4 = Scheme("int4", "I32", "BF16", 7, GROUP_SIZE, "pack-quantized", "int", 4, activations=False)
INT8 = Scheme("int8", "I8", "F32", 127, None, "int-quantized", "int", 8, activations=True)
FP8 = Scheme("fp8", "F8_E4M3", "F32", 448, None, "float-quantized", "float", 8, activations=True)
FP8FNUZ = Scheme("fp8fnuz", "F8_E4M3FNUZ", "F32", 240, None, "float-quantized", "float", 8, activations=True)


@dataclass(frozen=True)
class Format:
    """One build: the scheme of its linears, and which of its tables are int4.

    Attributes
    ----------
    name
        The build's name on every command line, in every record and report.
    linears
        Scheme of every linear; None leaves them bf16.
    tables
        The tables packed to int4, of ``embed_tokens`` and ``embed_tokens_per_layer``.
    """

    name: str
    linears: Scheme | None
    tables: frozenset[str] = field(default_factory=frozenset)

    @property
    def unties_lm_head(self) -> bool:
        """A packed embedding cannot be tied, so the head is written out beside it."""
        return "embed_tokens" in self.tables

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """The distinct schemes of this build, linears first."""
        found = [self.linears] if self.linears else []
        if self.tables and INT4 not in found:
            found.append(INT4)
        return tuple(found)

    @property
    def needs_grid(self) -> bool:
        """Whether anything is packed to int4 and must therefore lie on the 4-bit grid."""
        return INT4 in self.schemes


PLE = frozenset({"embed_tokens_per_layer"})
ALL_TABLES = frozenset({"embed_tokens", "embed_tokens_per_layer"})

_RECORDS = (
    Format("bf16", None),
    Format("fp8", FP8),
    Format("fp8fnuz", FP8FNUZ),
    Format("fp8emb4", FP8, ALL_TABLES),
    Format("fp8fnuzemb4", FP8FNUZ, ALL_TABLES),
    Format("w8a8", INT8),
    Format("w8a8emb4", INT8, ALL_TABLES),
    Format("q4w4a16", INT4),
    Format("q4w4a16ple4", INT4, PLE),
    Format("q4w4a16emb4", INT4, ALL_TABLES),
)
FORMATS: dict[str, Format] = {record.name: record for record in _RECORDS}


def format_named(name: str) -> Format:
    """The format of that name.

    Raises
    ------
    UnknownFormat
        With the names there are.
    """
    try:
        return FORMATS[name]
    except KeyError:
        raise UnknownFormat("format", got=repr(name), expected=f"one of {', '.join(FORMATS)}") from None
