"""The rules that answer "which one?": for one request, for many, for fidelity, on a shared card. Pure.

A rule compares only builds that ran, answered right and verified; it never picks a winner where intervals
overlap. Knows no page: an answer is words, figures and caveats.
"""

from collections.abc import Callable, Collection, Sequence

from tests.report.caveats import fit, left_unserved, unserved
from tests.report.fidelity import fidelity_answer
from tests.report.run import BASE, NOISY_CV, Gap, Run, load_name
from tests.report.spread import Interval, around, geometric_mean, pooled
from tests.report.standing import Answer, Standing, tied
from tests.report.words import gib, is_, listed, rate, ratio, share, whole

SHARED_KEEPS = 0.5  # on a shared card a build must keep half the speed of the fastest
BEHIND = 0.03  # a tied build this far behind is tied by its spread, and a caveat says so
SAME_MEMORY = 0.01  # builds within one per cent of each other take the same memory


def ranked_loads(run: Run, wanted: Callable[[int], bool]) -> list[tuple[int, int]]:
    """The loads of some concurrencies without the noisy ones; all of them where all are noisy."""
    loads = [load for load in run.grid if wanted(load[0])]
    return [load for load in loads if load not in run.noisy] or loads


def speed(run: Run, build: str, loads: Sequence[tuple[int, int]]) -> Interval | None:
    """A build's geometric mean of output tokens a second over some loads; None where a cell is missing."""
    cells = [run.cell(build, load) for load in loads]
    rates = [cell.tok_per_s for cell in cells if cell.tok_per_s]
    if not rates or len(rates) < len(cells):
        return None
    spread = pooled([cell for cell in run.cells.values() if cell.build == build])
    return around(geometric_mean(rates), spread, sum(cell.repeat_count for cell in cells))


def _speed_words(run: Run, build: str, loads: Sequence[tuple[int, int]], base: Interval | None) -> str:
    """The slowest and fastest cell, and the mean ratio to bf16 with its interval."""
    rates = [cell.tok_per_s for cell in (run.cell(build, load) for load in loads) if cell.tok_per_s]
    ends = dict.fromkeys(rate(each) for each in (min(rates), max(rates)))
    words = f"{'–'.join(ends)} tok/s"
    value = speed(run, build, loads)
    if base is None or value is None:
        return words
    words += f", {ratio(value.value / base.value)} {BASE}"
    if build == BASE:  # against itself nothing is uncertain
        return words
    if value.low is None or value.high is None:
        return words + ", spread unknown"
    return f"{words} ({ratio(value.low / base.value)} to {ratio(value.high / base.value)})"


def _by_speed(run: Run, loads: Sequence[tuple[int, int]]) -> list[Standing]:
    found = {build.name: speed(run, build.name, loads) for build in fit(run)}
    base = speed(run, BASE, loads)
    standings = [
        Standing(name, mean.value, _speed_words(run, name, loads, base), mean)
        for name, mean in found.items()
        if mean
    ]
    return sorted(standings, key=lambda each: -each.value)


def _speed_answer(run: Run, key: str, asked: str, wanted: Callable[[int], bool]) -> Answer:
    loads = ranked_loads(run, wanted)
    standings = _by_speed(run, loads) if loads else []
    if not standings:
        return Answer(key, asked, (), "not measured", "no cell of this kind was measured")
    picks = tied(standings)
    basis = f"output tokens a second, geometric mean over {listed([load_name(load) for load in loads])}"
    verdict = "clear" if len(picks) == 1 else "too close to call"
    return Answer(
        key, asked, picks, verdict, basis, tuple(standings), _speed_caveats(run, loads, standings, wanted)
    )


def _speed_caveats(
    run: Run, loads: Sequence[tuple[int, int]], standings: Sequence[Standing], wanted: Callable[[int], bool]
) -> tuple[str, ...]:
    caveats = []
    noisy = [
        load_name(load) for load in run.grid if wanted(load[0]) and load in run.noisy and load not in loads
    ]
    if noisy:
        caveats.append(f"{listed(noisy)} varies by over {share(NOISY_CV)} between repeats and is left out")
    behind = [
        f"{each.build} ({share(1 - each.value / standings[0].value)} behind)"
        for each in standings
        if each.build in tied(standings) and each.value < (1 - BEHIND) * standings[0].value
    ]
    if behind:
        caveats.append(f"only a wide spread keeps {listed(behind)} in")
    if all(each.interval is None or each.interval.low is None for each in standings):
        caveats.append("without repeats no spread is known, so no build can be called faster")
    return (*caveats, *_left_out(run, [each.build for each in standings], "a cell"))


def _left_out(run: Run, compared: Collection[str], what: str) -> tuple[str, ...]:
    """Builds that an answer cannot compare: those that never ran, and those that lack some figure."""
    never = [name for names in unserved(run).values() for name in names]
    lacking = [b.name for b in fit(run) if b.name not in compared and b.name not in never]
    verb = "lacks" if len(lacking) == 1 else "lack"
    said = (f"{listed(lacking)} {verb} {what} and {is_(lacking)} not compared",) if lacking else ()
    return (*said, *left_unserved(run))


def _memory(run: Run, build: str) -> float | None:
    loaded = run.figure("serve", build, "boot", "loaded_gib")
    return float(loaded) if isinstance(loaded, int | float) else None


def shared_answer(run: Run) -> Answer:
    """The build that leaves most of the card to others, among those at least half as fast as the fastest."""
    asked = "On a shared card"
    loads = ranked_loads(run, lambda _: True)
    speeds = {each.build: each for each in _by_speed(run, loads)} if loads else {}
    memory = {b.name: m for b in fit(run) if (m := _memory(run, b.name)) is not None}
    both = [name for name in memory if name in speeds]
    if not both:
        return Answer(
            "shared", asked, (), "not measured", "needs loaded memory and speed of one build at least"
        )
    fastest = max(speeds[name].value for name in both)
    keep = [name for name in both if speeds[name].value >= SHARED_KEEPS * fastest]
    least = min(memory[name] for name in keep)
    near = sorted((n for n in keep if memory[n] <= least * (1 + SAME_MEMORY)), key=lambda n: -speeds[n].value)
    standings = [
        Standing(name, memory[name], _shared_words(run, name, memory[name], speeds[name]))
        for name in sorted(keep, key=lambda name: (memory[name], -speeds[name].value))
    ]
    picks = tied([speeds[name] for name in near])
    verdict = "clear" if len(picks) == 1 else "equal"
    basis = f"least memory after load, among builds at least {share(SHARED_KEEPS)} as fast as the fastest"
    return Answer(
        "shared", asked, picks, verdict, basis, tuple(standings), _shared_caveats(run, memory, speeds, least)
    )


def _shared_words(run: Run, name: str, loaded: float, standing: Standing) -> str:
    tokens = run.figure("serve", name, "boot", "kv_tokens_log")
    room = "" if isinstance(tokens, Gap) else f", KV for {whole(tokens)} tokens"
    return f"{gib(loaded)} loaded{room}; {standing.words}"


def _shared_caveats(
    run: Run, memory: dict[str, float], speeds: dict[str, Standing], least: float
) -> tuple[str, ...]:
    smaller = sorted((m, n) for n, m in memory.items() if m < least and n in speeds)
    caveats = [f"{n} takes less, {gib(m)}, at {speeds[n].words.partition(' (')[0]}" for m, n in smaller]
    both = [name for name in memory if name in speeds]
    return (*caveats, *_left_out(run, both, "a cell or its memory"))


def answers(run: Run) -> tuple[Answer, ...]:
    """All four answers, in the order in which the report gives them."""
    few = min(run.concurrencies, default=1)
    many = "For many requests at once"
    return (
        _speed_answer(run, "one", "For one request at a time", lambda n: n == few == 1),
        _speed_answer(run, "many", many, lambda n: n > 1),
        fidelity_answer(run),
        shared_answer(run),
    )
