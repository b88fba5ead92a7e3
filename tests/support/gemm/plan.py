"""What a timing program is told: shapes, rows, budgets and cache sizes for one machine, as plain JSON.

The settings of a timing live here and nowhere else. Pure; the launcher and the suite import it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quantkit.machines import Machine
from tests.support.gemm.backends import Backend
from tests.support.gemm.shapes import Token

LEAST_SAMPLES = 3  # over all processes: fewer are no figure
CACHES = 2  # weights in turn fill the last-level cache this often, so that each is cold again


@dataclass(frozen=True)
class Timing:
    """How long and how often.

    Attributes
    ----------
    processes
        Fresh processes, whose medians make the spread.
    budget_s
        Seconds that one backend at one number of rows may take in a process; what would take longer is not run.
    least_samples, samples
        Fewest and most samples of a product in a process.
    control_side
        Side of the square product whose rate stands for the dense peak.
    copy_bytes
        Size of the buffer whose copying gives the copy bandwidth.
    drift_limit
        Largest relative change of one product's time around a cell; None where it only informs.
    """

    processes: int
    budget_s: float
    least_samples: int
    samples: int
    control_side: int
    copy_bytes: int
    drift_limit: float | None


TIMINGS = {
    ("cpu", "smoke"): Timing(3, 2.0, 1, 15, 1024, 1 << 28, None),
    ("cpu", "article"): Timing(3, 60.0, 3, 15, 1024, 1 << 28, None),
    ("gpu", "smoke"): Timing(3, 20.0, 10, 30, 8192, 1 << 30, 0.03),
    ("gpu", "article"): Timing(3, 60.0, 20, 100, 8192, 1 << 30, 0.03),
}


def device_kind(machine: Machine) -> str:
    """``cpu`` or ``gpu``: CUDA and HIP are one device to torch."""
    return "cpu" if machine.arch == "cpu" else "gpu"


def timing_for(machine: Machine, grid: str) -> Timing:
    """How long and how often on this machine, for a grid of the sweep."""
    return TIMINGS[device_kind(machine), grid]


def plan_for(
    machine: Machine,
    token: Token,
    rows: Sequence[int],
    timing: Timing,
    backends: Sequence[Backend] = tuple(Backend),
) -> dict[str, Any]:
    """The plan of one process.

    Notes
    -----
    On a GPU every product of a token has weights of its own (``distinct``); on a CPU, whose memory may be small,
    a shape has as many copies as fill the last-level cache twice.
    """
    return {
        "device": device_kind(machine),
        "model": token.model,
        "backends": [backend.label for backend in backends],
        "rows": list(rows),
        "shapes": [
            {"name": shape.name, "n": shape.n, "k": shape.k, "count": shape.count} for shape in token.shapes
        ],
        "order": [shape.name for shape in token.order],
        "span_bytes": CACHES * machine.last_level_cache_mib << 20,
        "distinct": device_kind(machine) == "gpu",
        "budget_s": timing.budget_s,
        "least_samples": timing.least_samples,
        "samples": timing.samples,
        "control_side": timing.control_side,
        "copy_bytes": timing.copy_bytes,
    }
