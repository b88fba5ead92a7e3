"""What the judge can find wrong with a build: a table of kinds, one sentence each, and the typed finding.

Data and a record; it reads nothing and decides nothing. `verify` and its parts make findings; anyone may
read them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

MANY = 100  # places of one kind that are named one by one; a file made to hurt has a million

KINDS: dict[str, str] = {
    # the set of tensors and how they lie on disk
    "missing_tensor": "a tensor that the source's config implies is absent",
    "unexpected_tensor": "a tensor that nothing implies is there",
    "wrong_dtype": "a tensor has another dtype than its scheme stores",
    "wrong_shape": "a tensor has another shape than the source's config implies",
    "left_dense": "a module is left bfloat16 although the build quantizes its like",
    "other_scheme": "a module is stored in another scheme than its like",
    "stored_twice": "a module has both dense and packed weights",
    "unknown_build": "linears and tables are stored in a combination that no build has",
    "weight_shape_differs": "a weight_shape tensor does not hold the shape of its weight",
    "index_size_differs": "the index gives another total size than its tensors have",
    "metadata_differs": "a shard does not declare the metadata format pt, which loaders ask for",
    "stray_weights": "a file of weights lies in the folder that no index names",
    "copied_differs": "a copied tensor differs from the source",
    # values
    "step_unusable": "an int4 step is zero, infinite or NaN",
    "off_grid": "values of a group lie farther from step x level than rounding explains",
    "level_not_nearest": "a stored level is not the nearest to source / stored step",
    "step_not_fitted": "a stored step is not the rounded least-squares fit of its own levels",
    "grid_too_fine": "a coarser lattice holds the group too, and the rule takes the coarsest",
    "step_sign": "a step is negative where a positive one holds the group",
    "scale_unusable": "a scale is zero, negative, infinite or NaN",
    "nan_code": "a code stands for NaN, or for a level outside the symmetric range",
    "code_not_nearest": "a stored code is not the nearest to source / stored scale",
    "scale_not_rule": "a stored scale is not the row's absmax / the largest code",
    "error_over_bound": "the error exceeds what the format's own rounding explains",
    "decoder_fault": "the error is larger than the signal: codes are read or packed wrongly",
    # what explains wrong values, tried on the first block of a faulty tensor
    "step_rule": "steps follow absmax / 7, / 7.5 or / 8 and not the lattice of the source",
    "nibble_sign": "levels are packed as two's complement and not biased by 8",
    "nibble_order": "levels are packed highest nibble first",
    "packed_transposed": "levels are packed along the output dimension",
    "scales_permuted": "scales of two rows or groups are exchanged",
    "rows_permuted": "rows of the weight are in another order than in the source",
    "fp8_flavour": "bytes of one float8 flavour are labelled as the other, a factor of two",
    "other_module": "the weights are those of another module of the source",
    "other_source": "the weights have nothing to do with the source's",
    # config.json
    "config_not_quantized": "quantization_config is absent, or present where nothing is quantized",
    "config_field": "a field of quantization_config is not what loaders of compressed-tensors expect",
    "config_group_empty": "a config group matches no quantized module",
    "config_group_wrong": "a config group matches a module that is stored otherwise",
    "config_module_unmatched": "a quantized module is matched by no config group",
    "config_ignored_but_quantized": "a module on the ignore list is quantized",
    "config_dense_not_ignored": "a linear left bfloat16 is not on the ignore list",
    "config_ignore_empty": "an entry of the ignore list matches nothing that is left dense",
    "config_pattern": "a pattern is no regular expression that can be matched in bounded time",
    "config_tie": "the tie of embedding and head is declared otherwise than they are stored",
    "config_changed": "a field of config.json differs from the source's",
    # side files
    "side_file_missing": "a side file of the source (tokenizer, chat template, ...) is absent",
    "side_file_differs": "a side file differs from the source's",
    "side_file_unexpected": "a file or folder lies there that the source has not, and a loader may read it",
}


def printable(text: str) -> str:
    """The text on one line: names that others made up may hold newlines, or escapes that a terminal obeys."""
    return "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in text)


@dataclass(frozen=True)
class Finding:
    """One fault.

    Attributes
    ----------
    kind
        A key of KINDS.
    where
        Tensor, module, file or config field.
    got, expected
        What was found, and what would have been right; empty where the kind says it all.
    count
        How often in `where`.
    """

    kind: str
    where: str
    got: str = ""
    expected: str = ""
    count: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no kind of finding is called {self.kind!r}")

    @property
    def sentence(self) -> str:
        """One sentence: where, what, got, expected, how often."""
        parts = [f"{self.where}: {KINDS[self.kind]}"]
        if self.got:
            parts.append(f"got {self.got}")
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.count > 1:
            parts.append(f"{self.count:,} times")
        return printable(", ".join(parts))

    def __str__(self) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """JSON object of the finding, its sentence included."""
        return asdict(self) | {"message": self.sentence}


def each(kind: str, places: Sequence[str], expected: str = "") -> Iterator[Finding]:
    """A finding for each place; where they are more than MANY one for the first, with their number."""
    if len(places) > MANY:
        yield Finding(kind, places[0], expected=expected, count=len(places))
    else:
        yield from (Finding(kind, place, expected=expected) for place in places)
