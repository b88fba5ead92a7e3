"""What a miniature server says and does, and the table of its defects: each differs from the good one in one thing.

Data only; `vllm_server` acts it out. The boot log's lines are those of vLLM 0.32 on CPU. Imported by the judge's
tests; may not import what it is there to judge, but for the questions.
"""

from dataclasses import dataclass, field, replace

GOOD_LOG = (
    "(EngineCore pid=7) INFO 11-29 21:17:56 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
    "model='/m', dtype=torch.bfloat16, quantization={quantization}, seed=0, enable_prefix_caching=True, "
    "compilation_config={{'mode': 0, 'cudagraph_mode': <CUDAGraphMode.NONE: 0>}}",
    "(Worker pid=8) INFO 11-29 21:18:26 [__init__.py:847] Selected {kernel} for CompressedTensorsW8A8Int8",
    "(Worker pid=8) INFO 11-29 21:18:27 [vllm_cpu.py:115] quantkit: parameters held after load: {held} bytes "
    "in 81 tensors, 0 bytes of them in prepacked kernels",
    "(Worker pid=8) INFO 11-29 21:18:27 [vllm_cpu.py:116] quantkit: buffers held after load: 12583028 bytes",
    "(Worker pid=8) INFO 11-29 21:18:27 [vllm_cpu.py:121] quantkit: attention backends: CPU_ATTN.",
    "(EngineCore pid=7) INFO 11-29 21:18:28 [kv_cache_utils.py:2327] CPU KV cache size: {kv} tokens, "
    "Maximum concurrency for 9,216 tokens per request: 156.04x",
    "INFO:     Application startup complete.",
)
KERNEL = "CPUInt8ScaledMMLinearKernel"
HELD_BYTES = 1_841_612
BF16_BYTES = 3_270_080
KV_TOKENS = 1_438_047


@dataclass(frozen=True)
class World:
    """A server of the build w8a8, and what it does.

    Attributes
    ----------
    log
        Lines of its boot log.
    dies
        When it exits by itself: ``boot``, ``first request``, or never.
    health
        Status of /health once it listens.
    listens_after_s
        Seconds until it listens.
    served
        Name that /v1/models gives; empty gives the right one.
    answers
        Kind of question -> what to change in the right answer, a name that `vllm_server` knows.
    logprob_factor
        Factor on every log probability.
    image_status
        Status for a request with an image.
    starts, tokens
        How often it boots; how many tokens it makes when one is asked for.
    """

    log: tuple[str, ...] = GOOD_LOG
    quantization: str = "compressed-tensors"
    kernel: str = KERNEL
    held: int = HELD_BYTES
    kv_log: str = f"{KV_TOKENS:,}"
    kv_metrics: int = KV_TOKENS
    dies: str = ""
    health: int = 200
    listens_after_s: float = 0.0
    served: str = ""
    answers: dict[str, str] = field(default_factory=dict)
    logprob_factor: float = 1.0
    image_status: int = 400
    starts: int = 1
    tokens: int = 1


GOOD = World()


def without(word: str) -> tuple[str, ...]:
    """The good log without the lines that hold a word."""
    return tuple(line for line in GOOD_LOG if word not in line)


def reworded(old: str, new: str) -> tuple[str, ...]:
    """The good log with some words changed."""
    return tuple(line.replace(old, new) for line in GOOD_LOG)


def doubled(word: str, old: str, new: str) -> tuple[str, ...]:
    """The good log with a second line after the one that holds a word, which says something else."""
    lines = ((line, line.replace(old, new)) if word in line else (line,) for line in GOOD_LOG)
    return tuple(line for pair in lines for line in pair)


DEFECTS: dict[str, World] = {
    "none": GOOD,
    "dequantized at load": replace(GOOD, held=BF16_BYTES),
    "half of the weights left out": replace(GOOD, held=HELD_BYTES // 2),
    "another kernel": replace(GOOD, kernel="TritonInt8ScaledMMLinearKernel"),
    "a second kernel": replace(GOOD, log=doubled("Selected", "{kernel}", "CPUWNA16LinearKernel")),
    "no kernel line": replace(GOOD, log=without("Selected")),
    "not seen as quantized": replace(GOOD, quantization="None"),
    "no KV line": replace(GOOD, log=without("KV cache")),
    "no memory line": replace(GOOD, log=without("parameters held")),
    "KV line of an unknown form": replace(GOOD, log=reworded("KV cache size:", "KV cache size is now")),
    "kernel line of an unknown form": replace(GOOD, log=reworded("Selected", "Chose")),
    "KV pool disagrees": replace(GOOD, kv_metrics=KV_TOKENS // 2),
    "503 for ever": replace(GOOD, health=503),
    "dies during boot": replace(GOOD, dies="boot"),
    "dies on the first request": replace(GOOD, dies="first request"),
    "makes no token": replace(GOOD, tokens=0),
    "boots slowly": replace(GOOD, listens_after_s=60),
    "starts again and again": replace(GOOD, starts=3, listens_after_s=60),
    "another model": replace(GOOD, served="quantkit-bf16"),
    "fluent and wrong": replace(GOOD, answers={"text": "other words"}),
    "a list of everything": replace(GOOD, answers={"text": "all words"}),
    "thinking empty": replace(GOOD, answers={"thinking": "no reasoning"}),
    "thinking named as before": replace(GOOD, answers={"thinking": "old name"}),
    "wrong after thinking": replace(GOOD, answers={"thinking": "other words"}),
    "another tool": replace(GOOD, answers={"tool": "other name"}),
    "wrong argument": replace(GOOD, answers={"tool": "other argument"}),
    "arguments not JSON": replace(GOOD, answers={"tool": "not JSON"}),
    "tool call as text": replace(GOOD, answers={"tool": "as text"}),
    "tool result ignored": replace(GOOD, answers={"tool result": "other words"}),
    "cut off": replace(GOOD, answers={"text": "cut off"}),
    "error inside the stream": replace(GOOD, answers={"text": "error event"}),
    "stream without an end": replace(GOOD, answers={"text": "no finish"}),
    "other weights": replace(GOOD, logprob_factor=1.5),
    "image accepted": replace(GOOD, image_status=200),
    "image crashes": replace(GOOD, image_status=500),
}
