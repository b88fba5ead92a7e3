"""What the report's words mean, and how to repeat a run: the text that every report ends with. Data alone."""

from tests.report.answer import SAME_MEMORY, SHARED_KEEPS
from tests.report.run import BASE, NOISY_CV
from tests.report.words import share

DEFINITIONS: tuple[tuple[str, str], ...] = (
    (
        "TTFT",
        "from sending a request to its first chunk with content, reasoning or a tool call; never a role alone",
    ),
    (
        "TPOT",
        "(last token − first token) / (output tokens − 1) of a request; tokens as the server counts them",
    ),
    (
        "tokens a second",
        "all output tokens of a cell / (first request sent to last response ended); the median of the repeats, "
        "every one of which is kept",
    ),
    ("ratio", f"the same cell of the same run against {BASE}, which is measured first and last"),
    ("cv", "sample standard deviation (n − 1) over the mean of a cell's repeats"),
    (
        "interval",
        "95 %: Student's t × cv / √repeats on a logarithmic scale; cv pooled over a build's cells, those that vary by "
        f"over {share(NOISY_CV)} apart",
    ),
    (
        "too close to call",
        "the intervals of two builds overlap: this run cannot say which is faster, and does not",
    ),
    (
        "shared card",
        f"least memory after load (within {share(SAME_MEMORY)} is equal) among builds at least "
        f"{share(SHARED_KEEPS)} as fast as the fastest, geometric mean over all cells",
    ),
    (
        "fidelity rule",
        "among quantized builds: one with no group off the source's 4-bit grid first, then fewer int4 tables, then the "
        "least relative RMS error as served",
    ),
    (
        "holds the 4-bit grid exactly",
        "every level (a whole number from −8 to 7) is the source's own; the step that multiplies a group's levels is "
        "stored rounded to bfloat16, so that some values come back a rounding away: all levels exact, yet not all "
        "values bit-identical, and a small RMS error",
    ),
    (
        "negative step",
        "levels end at −8 and 7; a group whose largest positive value is 8 steps is stored with a step below zero and "
        "that value as level −8. The values are the same: it is no fault",
    ),
    ("relative RMS error", "√(Σ (built − source)² / Σ source²) over all values of all linears"),
    ("worst over row absmax", "max |built − source| / max |row of the source|"),
    ("worst per element", "max |built − source| / |source| of one value"),
    (
        "as served",
        "after what the engine's loader does: scale casts, fp8 bits of one flavour read as the other",
    ),
    ("not measured", "there is no figure, and the reason is given; never zero, never an estimate"),
)
