"""Which quantized build stays nearest to its source: one on the source's grid first, then the least error. Pure."""

from collections.abc import Callable
from typing import Any

from tests.report.caveats import fit
from tests.report.run import BASE, Build, Gap, Run
from tests.report.standing import Answer, Standing
from tests.report.words import error, listed

DENSE = ("bf16", "unknown")  # linears that no fidelity rule ranks


def fidelity_figure(run: Run, build: Build) -> Any:
    """Relative RMS error of a build's linears, as served where that was measured; or a Gap."""
    if build.linears == "bf16":
        return Gap("nothing is quantized")
    served = run.figure("quant", build.name, "fidelity", "as_served", "relative_rms_error")
    return (
        run.figure("quant", build.name, "fidelity", "relative_rms_error")
        if isinstance(served, Gap)
        else served
    )


def error_metric(run: Run) -> tuple[str, Callable[[Build], Any]]:
    """What stands for fidelity: log probabilities as served where they were measured, else the weights' error."""

    def served(build: Build) -> Any:
        found = run.figure("serve", build.name, "logprobs", "mean_abs_dlogprob")
        return 0.0 if isinstance(found, Gap) and build.name == BASE else found

    measured = [build for build in run.builds if not isinstance(served(build), Gap)]
    if len(measured) > 1:
        return "mean |Δ log probability| against bf16, as served", served
    return "relative RMS error of the weights", lambda build: fidelity_figure(run, build)


def on_grid(run: Run, build: Build) -> bool:
    """Whether every group of an int4 build's linears was found on the source's 4-bit grid."""
    off_grid = run.figure("quant", build.name, "fidelity", "groups_off_grid")
    return build.linears == "int4" and isinstance(off_grid, int) and off_grid == 0


def _fidelity_standing(run: Run, build: Build) -> tuple[tuple[int, int, float], Standing] | None:
    rms = fidelity_figure(run, build)
    identical = _share_identical(run, build.name)
    tables = len(build.format.tables) if build.format else 0
    words = [] if isinstance(rms, Gap) else [f"relative RMS error {error(rms)}"]
    if on_grid(run, build):
        words.insert(0, "holds the 4-bit grid exactly, 0 groups off it")
        words += [] if identical is None else [f"{identical:.2%} of values bit-identical"]
        value = 0.0 if isinstance(rms, Gap) else float(rms)
        return (0, tables, value), Standing(build.name, value, ", ".join(words))
    if isinstance(rms, Gap):
        return None
    return (1, tables, float(rms)), Standing(build.name, float(rms), words[0])


def _share_identical(run: Run, build: str) -> float | None:
    same = run.figure("quant", build, "fidelity", "values_bit_identical")
    values = run.figure("quant", build, "fidelity", "values")
    return same / values if isinstance(same, int) and isinstance(values, int) and values else None


def fidelity_answer(run: Run) -> Answer:
    """The quantized build nearest to its source: one on the source's own grid first, then the least error."""
    asked = "For fidelity to the checkpoint"
    ran = {build.name for build in run.builds}
    candidates = [*fit(run), *(build for build in run.planned if build.name not in ran)]
    quantized = [build for build in candidates if build.linears not in DENSE]
    found = {build.name: _fidelity_standing(run, build) for build in quantized}
    ranked = sorted((each for each in found.values() if each), key=lambda each: each[0])
    if not ranked:
        return Answer("fidelity", asked, (), "not measured", "no quantized build's weights were compared")
    picks = tuple(standing.build for key, standing in ranked if key == ranked[0][0])
    caveats = ["among quantized builds; bf16 is the unquantized form"]
    if left_out := [name for name, each in found.items() if not each]:
        caveats.append(f"{listed(left_out)}: weights not measured, not compared")
    basis = "error of the linears' weights against the source; dense tables before int4 ones"
    verdict = "clear" if len(picks) == 1 else "equal"
    return Answer("fidelity", asked, picks, verdict, basis, tuple(s for _, s in ranked), tuple(caveats))
