"""A streaming server that follows a script, so that the true times and counts of every answer are known.

Each field of `Script` is one way in which a real engine answers, or misleads. Runs in a thread of its own on
a free loopback port. Imported by tests of the judge only.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

MODEL = "scripted"
BREAKS = ("", "error", "disconnect", "hang", "status", "garbage")


@dataclass(frozen=True)
class Script:
    """What every request is answered with; the defaults are an honest engine.

    Attributes
    ----------
    first_s, per_token_s
        True time to the first token, and from each token to the next.
    tokens_per_chunk
        Tokens that travel in one event; it is sent when the last of them is made.
    role_chunk_s
        When a chunk that only names the role is sent; None: none is.
    reasoning_tokens
        Tokens at the start that come as reasoning, in chat chunks.
    empty_text
        Tokens whose text is still empty, at the start.
    stall_after, stall_s
        Tokens after which the stream pauses once, and for how long.
    usage
        ``continuous``, ``final`` (in the closing event alone) or ``missing``.
    prompt_off, output_off, usage_off
        By how much the counted prompt, the tokens made, and the counted output differ from what is right.
    breaks, breaks_after, breaks_every
        How an answer fails, after how many tokens, and every how many requests (0: all).
    slots
        Requests served at once; the others wait. 0: no limit.
    cached_share
        Share of prompt tokens that the prefix cache claims to have served.
    dies_after
        Answers after which counters start again, as after a restart; 0: never.
    context_tokens
        The context it declares.
    """

    first_s: float = 0.03
    per_token_s: float = 0.005
    tokens_per_chunk: int = 1
    role_chunk_s: float | None = None
    reasoning_tokens: int = 0
    empty_text: int = 0
    stall_after: int = 0
    stall_s: float = 0.0
    usage: str = "continuous"
    prompt_off: int = 0
    output_off: int = 0
    usage_off: int = 0
    breaks: str = ""
    breaks_after: int = 3
    breaks_every: int = 0
    slots: int = 0
    cached_share: float = 0.0
    dies_after: int = 0
    context_tokens: int = 4096

    @property
    def chat(self) -> bool:
        """Whether the chunks are chat chunks."""
        return self.role_chunk_s is not None or self.reasoning_tokens > 0

    def chunks(self, prompt_tokens: int, asked: int) -> Iterator[tuple[float, int, bytes]]:
        """Each event as (seconds since the request, tokens out by then, data)."""
        made = asked + self.output_off
        if self.role_chunk_s is not None:
            yield (
                self.role_chunk_s,
                0,
                self._event({"delta": {"role": "assistant", "content": ""}}, prompt_tokens, 0),
            )
        for start in range(0, made, self.tokens_per_chunk):
            out = min(start + self.tokens_per_chunk, made)
            due_s = (
                self.first_s
                + (out - 1) * self.per_token_s
                + (self.stall_s if out > self.stall_after else 0.0)
            )
            choice = self._choice(start, "length" if out == made else None)
            yield due_s, out, self._event(choice, prompt_tokens, out)
        if self.usage != "missing":
            usage = self._usage(prompt_tokens, made + self.usage_off)
            yield due_s, made, json.dumps({"choices": [], "usage": usage}).encode()
        yield due_s, made, b"[DONE]"

    def _choice(self, token: int, finish: str | None) -> dict[str, Any]:
        text = "" if token < self.empty_text else "word"
        if not self.chat:
            return {"index": 0, "text": text, "finish_reason": finish}
        part = "reasoning" if token < self.reasoning_tokens else "content"
        return {"index": 0, "delta": {part: text}, "finish_reason": finish}

    def _event(self, choice: dict[str, Any], prompt_tokens: int, out: int) -> bytes:
        event: dict[str, Any] = {
            "id": "cmpl-1",
            "object": "text_completion",
            "model": MODEL,
            "choices": [choice],
        }
        if self.usage == "continuous":
            event["usage"] = self._usage(prompt_tokens, out)
        return json.dumps(event).encode()

    def _usage(self, prompt_tokens: int, out: int) -> dict[str, int]:
        prompt = prompt_tokens + self.prompt_off
        return {"prompt_tokens": prompt, "completion_tokens": out, "total_tokens": prompt + out}


@dataclass
class Truth:
    """When a request was read, its prompt's first id, and when its tokens were written; perf-counter seconds."""

    received_s: float
    prompt_id: int = 0
    writes_s: list[float] = field(default_factory=list)
    tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """From the request read to the first token written."""
        return self.writes_s[0] - self.received_s

    @property
    def tpot_s(self) -> float:
        """From the first to the last token written, over the tokens after the first."""
        return (self.writes_s[-1] - self.writes_s[0]) / (self.tokens - 1)


class StreamServer:
    """The server of a script, up while the context is open; on a free port where none is named.

    Attributes
    ----------
    truths
        One a request, in the order they came.
    most_running
        The most requests that were ever answered at once.
    """

    def __init__(self, script: Script, port: int = 0, model: str = MODEL) -> None:
        self.script = script
        self.port = port
        self.model = model
        self.truths: list[Truth] = []
        self.counts = dict.fromkeys(("prompt", "generation", "hits", "running", "waiting"), 0)
        self.most_running = 0
        self.base_url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "StreamServer":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = web.AppRunner(self._app(), shutdown_timeout=0.1)
        self._loop.run_until_complete(self._listen(runner))
        self._ready.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self._answer)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        return app

    async def _listen(self, runner: web.AppRunner) -> None:
        slots = self.script.slots or 10**6
        self._slots = asyncio.Semaphore(slots)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.base_url = f"http://{host}:{port}"

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.model, "max_model_len": self.script.context_tokens}]})

    async def _metrics(self, _: web.Request) -> web.Response:
        count = self.counts
        return web.Response(
            text=f"""# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{{engine="0"}} {count["running"]}.0
vllm:num_requests_waiting{{engine="0"}} {count["waiting"]}.0
vllm:prompt_tokens_total{{engine="0"}} {count["prompt"]}.0
vllm:generation_tokens_total{{engine="0"}} {count["generation"]}.0
vllm:prefix_cache_queries_total{{engine="0"}} {count["prompt"]}.0
vllm:prefix_cache_hits_total{{engine="0"}} {count["hits"]}.0
vllm:num_preemptions_total{{engine="0"}} 0.0
"""
        )

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        truth = Truth(time.perf_counter())
        nth = len(self.truths)
        self.truths.append(truth)
        body = await request.json()
        truth.prompt_id = body["prompt"][0]
        breaks = bool(self.script.breaks) and (
            not self.script.breaks_every or nth % self.script.breaks_every == 0
        )
        if breaks and self.script.breaks == "status":
            return web.json_response({"error": "overloaded"}, status=503)
        self.counts["waiting"] += 1
        async with self._slots:
            self.counts["waiting"] -= 1
            self._running(1)
            try:
                return await self._stream(request, body, truth, breaks)
            finally:
                self._running(-1)

    def _running(self, change: int) -> None:
        self.counts["running"] += change
        self.most_running = max(self.most_running, self.counts["running"])

    async def _stream(
        self, request: web.Request, body: dict[str, Any], truth: Truth, breaks: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        begun_s = time.perf_counter()
        prompt = len(body["prompt"])
        asked = body["max_tokens"] if body.get("ignore_eos") else 1  # an end-of-text token comes early
        for due_s, out, data in self.script.chunks(prompt, asked):
            await asyncio.sleep(max(0.0, begun_s + due_s - time.perf_counter()))
            if breaks and out > self.script.breaks_after:
                data = await self._break(request)
            if out > truth.tokens:
                truth.writes_s.append(time.perf_counter())
                truth.tokens = out
            await response.write(b"data: " + data + b"\n\n")
        self._count(prompt, truth.tokens)
        return response

    def _count(self, prompt_tokens: int, tokens: int) -> None:
        if self.script.dies_after and len(self.truths) > self.script.dies_after:
            self.counts["prompt"] = self.counts["generation"] = self.counts["hits"] = 0
        self.counts["prompt"] += prompt_tokens
        self.counts["generation"] += tokens
        self.counts["hits"] += int(prompt_tokens * self.script.cached_share)

    async def _break(self, request: web.Request) -> bytes:
        if self.script.breaks == "hang":
            await asyncio.sleep(3600)
        if self.script.breaks == "disconnect" and request.transport:
            request.transport.abort()
            raise asyncio.CancelledError
        if self.script.breaks == "garbage":
            return b"{broken"
        return json.dumps({"error": {"message": "EngineCore died", "code": 500}}).encode()
