"""Every tolerance of the judge: one home, a formula, a reason.

Numbers only; knows no tensor and no file. `verify` and its parts import it, and so may the tests.
"""

import math

from quantkit.formats import Scheme

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


# Half a step at the top: FP8 codes 256..448 lie 32 apart, FNUZ codes 128..240 16 apart, int8 levels 1 apart.
OVER_ROW_ABSMAX = {
    "F8_E4M3": 16 / 448 + FP32_SLACK,
    "F8_E4M3FNUZ": 8 / 240 + FP32_SLACK,
    "I8": 0.5 / 127 + FP32_SLACK,
}
FP8_HALF_STEP = 2.0**-4  # 3 stored mantissa bits: half of 2^-3 of the binade, so of the value or less
# Below the normal range the half step is constant, in units of the scale; a served FNUZ code adds as much.
FP8_UNDERFLOW = 2.0**-9


def relative_rms_bound(scheme: Scheme, width: int) -> float:
    """Largest ||error|| / ||values|| of any tensor with rows of `width` values.

    int4: each value within its own bound. fp8: each value within half a step of itself, or, below the normal
    range, within half the smallest step, where the row's peak alone is code_max scales long. int8: each value
    within half a level, the row's peak code_max levels long.
    """
    if scheme.packed:
        return INT4_PER_ELEMENT
    peak_share = math.sqrt(width) / scheme.code_max
    if scheme.arg_type == "float":
        return FP8_HALF_STEP + FP8_UNDERFLOW * peak_share + FP32_SLACK
    return 0.5 * peak_share + FP32_SLACK
