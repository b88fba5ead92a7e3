"""Every tolerance of the judge: one home, a formula, a reason.

Numbers only; knows no tensor and no file. `verify` and its parts import it, and so may the tests.
"""

from dataclasses import dataclass

BF16_HALF_ULP = 2.0**-8  # rounding to 8 significant bits moves a value by at most this share of itself
FP32_SLACK = (
    2.0**-22
)  # a quotient and a product in float32, each 2^-24 of a value; published maxima need 6e-8

# The value was rounded to bfloat16 when the source was stored, the step when the build was: two half ulps.
GRID_TOLERANCE = 2 * BF16_HALF_ULP
# And what is decoded is rounded to bfloat16 once more before it is compared.
INT4_PER_ELEMENT = 3 * BF16_HALF_ULP
# A least-squares fit of 32 products in float32 is off by at most 32 x 2^-24 of itself: nearer to a tie between
# two bfloat16 steps than that, either one is right.
STEP_TIE_MARGIN = 2.0**-19

# A rule that stores its scale in bfloat16 or float16 clips or stretches by one more rounding of the scale.
NARROW_SCALE = BF16_HALF_ULP


@dataclass(frozen=True)
class RowBound:
    """Bounds of an 8-bit scheme with one scale an output row.

    Attributes
    ----------
    over_row_absmax
        Largest |error| / row absmax: half the widest step between codes, plus float32 rounding.
    relative_rms
        Largest relative RMS error of any tensor that is not mostly underflow, or None where the rule bounds
        the error of a value by the row's peak only (int8), so that no constant exists.
    """

    over_row_absmax: float
    relative_rms: float | None


# Half a step at the top: FP8 codes 256..448 lie 32 apart, FNUZ codes 128..240 16 apart, int8 levels 1 apart.
# FP8 rounds every normal value by at most half of 2^-3 of its binade: 2^-4 of itself, and the RMS with it.
ROW_BOUNDS: dict[str, RowBound] = {
    "F8_E4M3": RowBound(16 / 448 + FP32_SLACK, 2.0**-4 + 2.0**-10),
    "F8_E4M3FNUZ": RowBound(8 / 240 + FP32_SLACK, 2.0**-4 + 2.0**-10),
    "I8": RowBound(0.5 / 127 + FP32_SLACK, None),
}
