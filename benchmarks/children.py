"""One timed quantization in a process of its own: `python children.py TOOL SOURCE OUT SCHEME` prints one JSON object.

Run by path under any Python that has the tool: quantkit, llmcompressor, or `floor`, which only moves the bytes.
Only the call is timed, not the imports; `quantize` times the whole process too. The resident peak is of the process.
"""

import json
import os
import sys
import time
from pathlib import Path

WORKERS = 2
NOT_LINEARS = ["re:.*embed_tokens.*", "re:.*vision_tower.*", "lm_head"]


def import_numba() -> None:
    """All of it: half is imported by the first call of a compiled function, half a second that is no work."""
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def quantkit(source: Path, out: Path, scheme: str) -> float:
    """Seconds of a build, everything on disk and synced."""
    import_numba()
    from quantkit.convert import build
    from quantkit.formats import format_named

    begun = time.perf_counter()
    build(source, out, format_named(scheme), workers=WORKERS)
    return time.perf_counter() - begun


def verify(source: Path, out: Path, scheme: str) -> float:
    """Seconds of a verification."""
    import_numba()
    from quantkit.verify import verify as judge

    begun = time.perf_counter()
    report = judge(source, out)
    seconds = time.perf_counter() - begun
    assert not report.problems, report.problems[0]
    return seconds


def llmcompressor(source: Path, out: Path, scheme: str) -> float:
    """Seconds of model_free_ptq on the CPU; it syncs nothing."""
    import torch
    from llmcompressor import model_free_ptq

    torch.set_num_threads(WORKERS)
    begun = time.perf_counter()
    model_free_ptq(source, out, scheme=scheme, ignore=NOT_LINEARS, max_workers=WORKERS, device="cpu")
    return time.perf_counter() - begun


def floor(source: Path, out: Path, scheme: str) -> float:
    """Seconds to read the source's text tensors and to write and sync as many bytes as the build has."""
    from quantkit.blocks import Workspace, cut
    from quantkit.checkpoint import Checkpoint
    from quantkit.formats import format_named
    from quantkit.plan import make_plan
    from quantkit.work import for_each

    out.mkdir()
    begun = time.perf_counter()
    with Checkpoint.open(source) as reader, (out / "bytes").open("wb") as file:
        plan = make_plan(reader.config, reader.entries, format_named(scheme))
        blocks = tuple(cut(plan.decisions))
        part = plan.file_bytes // len(blocks) + 1

        def move(space: Workspace, block: object) -> None:
            raw = space.source(block)  # type: ignore[arg-type]
            reader.pread_into(block.decision.tensor.name, block.start * block.row_bytes, raw)  # type: ignore[attr-defined]
            os.pwrite(file.fileno(), space._codes[:part].data, block.number * part)  # type: ignore[attr-defined]

        largest = max(part, *(block.size_bytes for block in blocks))
        for_each(blocks, WORKERS, lambda: Workspace(largest), move)
        os.fsync(file.fileno())
    return time.perf_counter() - begun


def peak_mb() -> float:
    """MiB resident at most. Not getrusage's: that one starts at what the parent held when it started this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


TOOLS = {tool.__name__: tool for tool in (quantkit, verify, llmcompressor, floor)}


def main() -> None:
    """Run one tool and print what it took."""
    tool, source, out, scheme = sys.argv[1:]
    seconds = TOOLS[tool](Path(source), Path(out), scheme)
    print(json.dumps({"seconds": seconds, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    main()
