"""The boot log's parser on real lines, and on what terminals, docker and other processes make of them."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.boot.log import LONGEST_MESSAGE, BootFacts, BootLog, UnknownLogForm

CPU_LOG = """\
(APIServer pid=11) INFO 11-29 21:10:28 [config.py:286] Gemma4 model has heterogeneous head dimensions \
{'sliding_attention': 64, 'full_attention': 128}. FA4 not available, forcing TRITON_ATTN backend.
(EngineCore pid=12) INFO 11-29 21:10:38 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: \
model='/m', dtype=torch.bfloat16, quantization=compressed-tensors, quantization_config=None, enforce_eager=True, \
enable_prefix_caching=True, enable_chunked_prefill=True, compilation_config={'mode': <CompilationMode.NONE: 0>, \
'cudagraph_mode': <CUDAGraphMode.NONE: 0>, 'cudagraph_num_of_warmups': 0}
(Worker pid=13) INFO 11-29 21:10:57 [cpu.py:178] Cannot use AttentionBackendEnum.TRITON_ATTN backend on CPU.
(Worker pid=13) INFO 11-29 21:10:57 [compressed_tensors_wNa16.py:138] Using CPUWNA16LinearKernel for \
CompressedTensorsWNA16
(Worker pid=13) INFO 11-29 21:10:57 [__init__.py:847] Selected CPUInt8ScaledMMLinearKernel for \
CompressedTensorsW8A8Int8
(Worker pid=13) WARNING 11-29 21:10:58 [utils.py:597] Failed to create oneDNN linear, fallback to torch linear.
(Worker pid=13) INFO 11-29 21:10:58 [vllm_cpu.py:90] quantkit: int4 embedding lookup in torch is active
(Worker pid=13) INFO 11-29 21:10:58 [vllm_cpu.py:115] quantkit: parameters held after load: 3270080 bytes in 81 \
tensors, 108 bytes of them in prepacked kernels
(Worker pid=13) INFO 11-29 21:10:58 [vllm_cpu.py:116] quantkit: buffers held after load: 12583028 bytes
(Worker pid=13) INFO 11-29 21:10:58 [vllm_cpu.py:121] quantkit: attention backends: CPU_ATTN.
(EngineCore pid=12) INFO 11-29 21:10:59 [kv_cache_utils.py:2327] CPU KV cache size: 729,444 tokens, Maximum \
concurrency for 9,216 tokens per request: 79.15x
"""
CPU_FACTS = BootFacts(
    version="0.32.0",
    kernels=(
        ("CPUWNA16LinearKernel", "CompressedTensorsWNA16"),
        ("CPUInt8ScaledMMLinearKernel", "CompressedTensorsW8A8Int8"),
    ),
    attention=("CPU_ATTN",),
    graph_mode="NONE",
    quantization="compressed-tensors",
    prefix_caching=True,
    loaded_bytes=3270080,
    prepacked_bytes=108,
    buffer_bytes=12583028,
    kv_tokens=729444,
    kv_context=9216,
    kv_concurrency=79.15,
    lookup_plugin=True,
    warnings=("Failed to create oneDNN linear, fallback to torch linear.",),
)
ROCM_LOG = """\
(EngineCore pid=206) INFO 10-07 23:31:02 [core.py:120] Initializing a V1 LLM engine (v0.31.1) with config: \
model='/m', quantization=compressed-tensors, enable_prefix_caching=True, compilation_config={'cudagraph_mode': \
<CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}
(EngineCore pid=206) INFO 10-07 23:31:20 [rocm.py:751] Using TRITON_ATTN backend out of potential backends: \
['TRITON_ATTN'].
(EngineCore pid=206) INFO 10-07 23:31:20 [rocm.py:894] Using Flash Attention backend for ViT model.
(EngineCore pid=206) INFO 10-07 23:31:21 [__init__.py:847] Selected RowWiseTorchFP8ScaledMMLinearKernel for \
CompressedTensorsW8A8Fp8
(EngineCore pid=206) INFO 10-07 23:31:21 [__init__.py:923] Using TritonW4A16LinearKernel for mixed-precision linear
(EngineCore pid=206) INFO 10-07 23:31:21 [moe.py:60] Using CompressedTensorsWNA16MoEMethod
(EngineCore pid=206) INFO 10-07 23:31:33 [model_runner.py:413] Model loading took 7.07 GiB memory and 3.8 seconds
(EngineCore pid=206) INFO 10-07 23:31:59 [kv_cache_utils.py:2200] GPU KV cache size: 9,017,531 tokens, Maximum \
concurrency for 32,768 tokens per request: 275.19x
"""
ROCM_FACTS = BootFacts(
    version="0.31.1",
    kernels=(
        ("RowWiseTorchFP8ScaledMMLinearKernel", "CompressedTensorsW8A8Fp8"),
        ("TritonW4A16LinearKernel", "mixed-precision linear"),
        ("CompressedTensorsWNA16MoEMethod", ""),
    ),
    attention=("TRITON_ATTN",),
    graph_mode="FULL_AND_PIECEWISE",
    quantization="compressed-tensors",
    prefix_caching=True,
    loaded_gib=7.07,
    kv_tokens=9017531,
    kv_context=32768,
    kv_concurrency=275.19,
)
LOGS = {"CPU": (CPU_LOG, CPU_FACTS), "ROCm": (ROCM_LOG, ROCM_FACTS)}


def facts_of(log: str, piece: int = 1 << 20) -> BootFacts:
    """The facts of a log that comes in pieces of so many bytes."""
    parser, data = BootLog(), log.encode()
    for start in range(0, len(data), piece):
        parser.feed(data[start : start + piece])
    return parser.facts()


def wrapped(width: int) -> Callable[[str], str]:
    """Lines cut at a width, as a terminal would."""

    def wrap(log: str) -> str:
        lines = log.splitlines()
        return "\n".join(line[at : at + width] for line in lines for at in range(0, len(line), width))

    return wrap


def prefixed(prefix: str) -> Callable[[str], str]:
    """Each line behind a prefix, as docker compose or kubectl write it."""
    return lambda log: "".join(f"{prefix}{line}\n" for line in log.splitlines())


def coloured(log: str) -> str:
    """Levels and prefixes in colour."""
    for word in ("INFO", "WARNING"):
        log = log.replace(f"{word} 1", f"\x1b[32m{word}\x1b[0m 1")
    return log.replace("(", "\x1b[0;36m(").replace("pid=", "\x1b[1mpid=").replace(") ", ")\x1b[0;0m ")


def noisy(log: str) -> str:
    """Half a megabyte of progress bars, routes and traces between the lines."""
    rng = random.Random(5)
    noise = (
        "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00, 53.49it/s]\r",
        "(APIServer pid=11) INFO 11-29 21:11:04 [launcher.py:195] Route: /v1/models, Methods: GET\n",
        "(APIServer pid=11) INFO 11-29 21:11:04 [launcher.py:195] Using model weights format, KV cache, backend\n",
        '  File "/usr/lib/python3/vllm/kernels.py", line 3, in <module>\n',
        "\x00\xff\n",
        'INFO:     127.0.0.1:56776 - "GET /health HTTP/1.1" 200 OK\n',
    )
    lines = []
    for line in log.splitlines(keepends=True):
        lines += [line, *(rng.choice(noise) for _ in range(700))]
    return "".join(lines)


def interleaved(log: str) -> str:
    """Another process's whole line in the middle of each line, which then goes on."""
    other = "(APIServer pid=11) INFO 11-29 21:11:04 [entry.py:136] Supported tasks: ['generate']\n"
    cut = ((line[: (2 * len(line)) // 3], line[(2 * len(line)) // 3 :]) for line in log.splitlines())
    return "".join(f"{start}{other}{rest}\n" for start, rest in cut)


DISGUISES: dict[str, Callable[[str], str]] = {
    "as it is": lambda log: log,
    "docker's time stamps": prefixed("2026-10-07T23:31:33.123456789Z "),
    "compose's prefix": prefixed("engine-1  | "),
    "wrapped at 80": wrapped(80),
    "wrapped at 61": wrapped(61),
    "wrapped at 45": wrapped(45),
    "coloured": coloured,
    "Windows line ends": lambda log: log.replace("\n", "\r\n"),
    "half a megabyte of noise": noisy,
    "interleaved": interleaved,
    "wrapped, then compose's prefix": lambda log: prefixed("engine-1  | ")(wrapped(90)(log)),
}


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("which", LOGS)
def test_facts(which: str, disguise: str) -> None:
    """The same facts, whatever the line went through."""
    log, facts = LOGS[which]
    found = facts_of(DISGUISES[disguise](log))
    assert replace(found, warnings=()) == replace(facts, warnings=())
    if "wrapped" not in disguise and "interleaved" not in disguise:
        assert found.warnings == facts.warnings


@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_pieces(piece: int) -> None:
    """A log that comes in pieces of any size gives the same facts."""
    assert facts_of(CPU_LOG, piece) == CPU_FACTS


AFTER = "(Worker pid=13) {} 11-29 21:10:59 [some.py:1] {}\n"
NO_FACTS = {
    "a warning that speaks of a kernel": (
        "WARNING",
        "Using TritonW4A16LinearKernel for mixed-precision linear",
    ),
    "a warning that speaks of the pool": ("WARNING", "The KV cache size is small"),
    "a kernel named again": ("INFO", "Using CPUWNA16LinearKernel for CompressedTensorsWNA16"),
    "a warning of no weight": ("WARNING", "Please set a seed"),
    "a fallback that is none of ours": ("INFO", "Fallback to the slow tokenizer"),
}


@pytest.mark.parametrize("which", NO_FACTS)
def test_what_is_no_fact(which: str) -> None:
    """Only what vLLM says of itself counts, once, and only warnings that bear on speed or numbers."""
    assert facts_of(CPU_LOG + AFTER.format(*NO_FACTS[which])) == CPU_FACTS


WARNINGS = (
    "Falling back to eager", "falls back", "Fall-back in use", "an untuned shape", "shape is not tuned", "suboptimal",
    "Sub-optimal", "Using default config", "Using default MoE config", "not optimized for this", "Performance may drop",
    "Weights are dequantized", "fp8 is emulated", "unsupported here", "not supported here", "Disabling graphs",
)  # fmt: skip


@pytest.mark.parametrize("text", WARNINGS)
def test_warnings_that_bear_on_speed_or_numbers(text: str) -> None:
    found = facts_of(CPU_LOG + AFTER.format("WARNING", text))
    assert found.warnings == (*CPU_FACTS.warnings, text)


def test_the_last_word_counts_and_each_plugin_is_told() -> None:
    again = "CPU KV cache size: 7,000 tokens, Maximum concurrency for 9,216 tokens per request: 0.76x"
    products = "quantkit: int4 products in torch are active"
    found = facts_of(CPU_LOG + AFTER.format("INFO", again) + AFTER.format("INFO", products))
    assert found == replace(CPU_FACTS, kv_tokens=7000, kv_concurrency=0.76, product_plugin=True)


def test_bytes_that_are_no_text() -> None:
    """A log is bytes, and some programs write others than UTF-8."""
    parser = BootLog()
    parser.feed(CPU_LOG.encode() + b"\xff\xfe\n")
    assert parser.facts() == CPU_FACTS


def test_a_message_that_never_ends_is_not_kept_whole() -> None:
    """Each further line is looked at together with its message: half a megabyte of them must not be."""
    parser = BootLog()
    parser.feed(CPU_LOG.encode() + b"no header at all\n" * 10_000)
    assert max(len(message.squeezed) for message in parser._open.values()) <= LONGEST_MESSAGE + 100


REWORDED = {
    "KV cache": ("CPU KV cache size: 729,444 tokens,", "CPU KV cache size: 0.7 M tokens,"),
    "kernel": ("Using CPUWNA16LinearKernel for", "Picked CPUWNA16LinearKernel for"),
    "scheme": ("CompressedTensorsW8A8Int8", "CompressedTensorsW8A8Int8Turbo"),
    "int4 scheme": ("CompressedTensorsWNA16", "CompressedTensorsWNA16Turbo"),
    "engine": ("LLM engine (v0.32.0) with config:", "LLM engine (v0.40.0), settings:"),
    "attention": ("quantkit: attention backends: CPU_ATTN.", "quantkit: attention is CPU_ATTN"),
    "held": ("bytes in 81 tensors", "MB in 81 tensors"),
    "buffers": ("buffers held after load: 12583028 bytes", "buffers held: 12 MB"),
    "plugin": ("int4 embedding lookup in torch is active", "int4 lookup is on"),
}


@pytest.mark.parametrize("which", REWORDED)
def test_unknown_form(which: str) -> None:
    """A line about a fact in other words is an error that names the versions that are known."""
    old, new = REWORDED[which]
    assert old in CPU_LOG
    with pytest.raises(UnknownLogForm, match=r"0\.31 \(ROCm\) and 0\.32 \(CPU\)"):
        facts_of(CPU_LOG.replace(old, new))


@pytest.mark.parametrize("word", ["LLM engine", "KV cache size", "parameters held", "attention backends"])
def test_line_absent(word: str) -> None:
    """A fact without a line is an error too, not a pass."""
    log = "".join(line for line in CPU_LOG.splitlines(keepends=True) if word not in line)
    with pytest.raises(UnknownLogForm, match="none in the whole log"):
        facts_of(log)
