"""The catalogue of what can be wrong with a build: number, name, miniature, and what the judge must call it.

One table; numbers 1-28 are the faults known from public reports, those with a letter are further forms of the
same, + further kinds. `test_verify_faults` runs every row on every format it applies to.
"""

from collections.abc import Callable
from dataclasses import dataclass

from quantkit.formats import Format
from tests.meta import spoil_config as config
from tests.meta import spoil_folder as folder
from tests.meta import spoil_tensors as tensors
from tests.meta import spoil_values as values

UNREADABLE = "unreadable"  # refused with exit status 2, since the folder contradicts itself


@dataclass(frozen=True)
class Fault:
    """One row of the catalogue.

    Attributes
    ----------
    kinds
        Findings that must all be among the judge's; UNREADABLE where it must refuse.
    applies
        Name of the condition in CONDITIONS that a format must meet.
    spoil
        Puts the defect into a draft (with the source's draft beside it), or into a saved folder.
    """

    number: str
    name: str
    kinds: tuple[str, ...]
    applies: str
    spoil: Callable[..., str]
    on_folder: bool = False


def _linears(fmt: Format) -> str:
    return fmt.linears.name if fmt.linears else "bf16"


def _all_alike(fmt: Format) -> bool:
    return len(fmt.schemes) == 1 and fmt.unties_lm_head


CONDITIONS: dict[str, tuple[Callable[[Format], bool], str]] = {
    "any": (lambda f: True, ""),
    "bf16": (lambda f: not f.schemes, "something is quantized"),
    "quantized": (lambda f: bool(f.schemes), "nothing is quantized"),
    "quantized linears": (lambda f: f.linears is not None, "linears are bf16"),
    "mixed": (lambda f: bool(f.schemes) and not _all_alike(f), "nothing, or all, is quantized alike"),
    "int4": (lambda f: f.needs_grid, "nothing is int4"),
    "8-bit": (lambda f: f.linears is not None and not f.linears.packed, "linears have no 8-bit codes"),
    "int4 linears": (lambda f: f.linears is not None and f.linears.packed, "linears are not int4"),
    "float8": (lambda f: _linears(f).startswith("fp8"), "linears are no float8"),
    "E4M3FN": (lambda f: _linears(f) == "fp8", "linears are no E4M3FN"),
    "FNUZ": (lambda f: _linears(f) == "fp8fnuz", "linears are no E4M3FNUZ"),
    "untied": (lambda f: f.unties_lm_head, "embed_tokens is not packed"),
    "tied, quantized": (
        lambda f: bool(f.schemes) and not f.unties_lm_head,
        "nothing is quantized, or the head is stored",
    ),
    "tied": (lambda f: not f.unties_lm_head, "embed_tokens is packed and untied"),
}

CHECKPOINT_FAULTS: tuple[Fault, ...] = (
    Fault("1", "step-absmax-over-8", ("step_rule", "off_grid"), "int4", values.minmax_steps(8)),
    Fault("1b", "step-absmax-over-7.5", ("step_rule", "off_grid"), "int4", values.minmax_steps(7.5)),
    Fault(
        "2",
        "nibbles-twos-complement",
        ("nibble_sign", "decoder_fault", "level_not_nearest"),
        "int4",
        values.twos_complement,
    ),
    Fault("3", "nibbles-highest-first", ("nibble_order", "decoder_fault"), "int4", values.highest_first),
    Fault("4", "packed-after-transpose", ("packed_transposed", "decoder_fault"), "int4", values.transposed),
    Fault("5", "scales-swapped", ("scales_permuted",), "quantized", values.swap_scales(values.UP)),
    Fault("6", "scales-rounded-narrow", ("scale_not_rule",), "8-bit", values.narrow_scales),
    Fault("6b", "steps-rounded-narrow", ("step_not_fitted", "error_over_bound"), "int4", values.narrow_steps),
    Fault("6c", "scale-dtype-narrow", ("wrong_dtype",), "quantized", values.scale_dtype),
    Fault("7", "fn-labelled-fnuz", ("fp8_flavour", "scale_not_rule"), "E4M3FN", values.other_flavour),
    Fault("7b", "fnuz-labelled-fn", ("fp8_flavour", "scale_not_rule"), "FNUZ", values.other_flavour),
    Fault(
        "7c", "one-module-other-flavour", ("other_scheme", "fp8_flavour"), "float8", values.one_other_flavour
    ),
    Fault("8", "nan-code", ("nan_code",), "8-bit", values.forbidden_code),
    Fault("9", "byte-0x80-in-fnuz", ("nan_code",), "FNUZ", values.forbidden_code),
    Fault("10", "zero-row-as-nan", ("scale_unusable",), "8-bit", values.nan_scale),
    Fault("10b", "zero-group-as-nan", ("step_unusable",), "int4", values.nan_step),
    Fault("11", "tensor-missing", ("missing_tensor",), "any", tensors.missing),
    Fault("12", "tensor-extra", ("unexpected_tensor",), "any", tensors.extra),
    Fault(
        "13",
        "linear-left-bf16",
        ("left_dense", "config_dense_not_ignored"),
        "quantized linears",
        tensors.left_dense,
    ),
    Fault(
        "13b", "linear-left-bf16-ignored", ("left_dense",), "quantized linears", tensors.left_dense_ignored
    ),
    Fault("14", "quantized-module-ignored", ("config_ignored_but_quantized",), "quantized", tensors.ignored),
    Fault("15", "dense-beside-packed", ("stored_twice",), "int4", tensors.stored_twice),
    Fault("15b", "packed-beside-codes", ("stored_twice",), "8-bit", tensors.packed_beside_rows),
    Fault("16", "copied-bit", ("copied_differs",), "any", tensors.copied_byte),
    Fault("17", "shard-truncated", (UNREADABLE,), "any", folder.truncated, on_folder=True),
    Fault("18", "header-too-large", (UNREADABLE,), "any", folder.header_too_large, on_folder=True),
    Fault("19", "offsets-overlap", (UNREADABLE,), "any", folder.overlapping, on_folder=True),
    Fault("19b", "offsets-out-of-range", (UNREADABLE,), "any", folder.out_of_range, on_folder=True),
    Fault("20", "index-absent-shard", (UNREADABLE,), "any", folder.index_names_absent_shard, on_folder=True),
    Fault("20b", "index-other-shard", (UNREADABLE,), "any", folder.index_names_other_shard, on_folder=True),
    Fault("20c", "index-lacks-tensor", (UNREADABLE,), "any", folder.index_lacks_tensor, on_folder=True),
    Fault("21", "packed-but-tied", ("config_tie",), "untied", config.tied_top),
    Fault("21b", "packed-but-tied-nested", ("config_tie",), "untied", config.tied_nested),
    Fault("21c", "untied-without-head", ("config_tie",), "tied", config.untied),
    Fault("22", "head-missing", ("missing_tensor",), "untied", tensors.no_head),
    Fault("22b", "head-dense", ("missing_tensor", "unexpected_tensor"), "untied", tensors.dense_head),
    Fault("23", "group-matches-nothing", ("config_group_empty",), "quantized", config.empty_group),
    Fault("23b", "group-matches-too-much", ("config_group_wrong",), "mixed", config.greedy_group),
    Fault("24", "side-file-missing", ("side_file_missing",), "any", folder.no_side_file, on_folder=True),
    Fault("24b", "side-file-differs", ("side_file_differs",), "any", folder.other_side_file, on_folder=True),
    Fault("24c", "side-file-extra", ("side_file_unexpected",), "any", folder.extra_side_file, on_folder=True),
    Fault("24d", "folder-extra", ("side_file_unexpected",), "any", folder.extra_folder, on_folder=True),
    Fault("25", "k-proj-absent", ("missing_tensor",), "any", tensors.key_absent),
    Fault("26", "gate-up-swapped", ("other_module",), "quantized linears", values.swap_gate_up),
    Fault("26b", "gate-up-swapped-dense", ("copied_differs",), "bf16", values.swap_gate_up),
    Fault("27", "rows-reversed", ("rows_permuted",), "quantized linears", values.reverse_rows),
    Fault("27b", "rows-reversed-dense", ("copied_differs",), "bf16", values.reverse_rows),
    Fault("28", "other-source", ("other_source",), "quantized", values.other_weights),
    Fault("28b", "other-source-dense", ("copied_differs",), "any", values.other_norms),
    # Kinds that no public report names.
    Fault("+1", "level-one-off", ("level_not_nearest",), "int4", values.level_by_one),
    Fault("+2", "code-one-off", ("code_not_nearest",), "8-bit", values.code_by_one),
    Fault("+3", "step-one-ulp-off", ("step_not_fitted",), "int4", values.step_ulp),
    Fault("+4", "scale-one-ulp-off", ("scale_not_rule",), "8-bit", values.scale_ulp),
    Fault("+5", "grid-too-fine", ("grid_too_fine",), "int4", values.finer_grid),
    Fault("+6", "step-needlessly-negative", ("step_sign",), "int4", values.needless_sign),
    Fault("+7", "rows-rolled", ("code_not_nearest", "rows_permuted"), "8-bit", values.roll_rows),
    Fault(
        "+7b", "rows-rolled-int4", ("level_not_nearest", "rows_permuted"), "int4 linears", values.roll_rows
    ),
    Fault("+7c", "rows-rolled-dense", ("copied_differs",), "bf16", values.roll_rows),
    Fault("+8", "scale-times-16", ("scale_not_rule", "decoder_fault"), "8-bit", values.scale_times_16),
    Fault("+8b", "step-times-16", ("off_grid", "decoder_fault"), "int4 linears", values.scale_times_16),
    Fault("+9", "shape-differs", ("wrong_shape",), "any", tensors.reshaped),
    Fault("+10", "weight-shape-differs", ("weight_shape_differs",), "int4", tensors.other_shape),
    Fault("+11", "combination-of-no-build", ("unknown_build",), "untied", tensors.table_dense),
    Fault("+12", "index-total", ("index_size_differs",), "any", folder.index_total, on_folder=True),
    Fault("+13", "metadata-absent", ("metadata_differs",), "any", folder.no_metadata, on_folder=True),
    Fault("+14", "other-weights-file", ("stray_weights",), "any", folder.stray_weights, on_folder=True),
    Fault("+15", "config-absent", ("config_not_quantized",), "quantized", config.no_quantization_config),
    Fault("+15b", "config-needless", ("config_not_quantized",), "bf16", config.needless_quantization_config),
    Fault("+16", "config-bits", ("config_field",), "quantized", config.other_arguments),
    Fault(
        "+17", "config-module-unmatched", ("config_module_unmatched",), "quantized", config.unmatched_module
    ),
    Fault(
        "+17b", "config-engine-names", ("config_module_unmatched",), "quantized", config.checkpoint_names_only
    ),
    Fault("+18", "config-ignores-nothing", ("config_ignore_empty",), "quantized", config.ignores_nothing),
    Fault(
        "+18b",
        "config-head-not-ignored",
        ("config_dense_not_ignored",),
        "tied, quantized",
        config.head_not_ignored,
    ),
    Fault("+19", "config-endless-pattern", ("config_pattern",), "quantized", config.endless_pattern),
    Fault("+20", "config-field-changed", ("config_changed",), "any", config.changed_field),
)
