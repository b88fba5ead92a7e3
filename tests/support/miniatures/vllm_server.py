"""A tiny server that speaks as vLLM does, with at most one defect of `vllm_world`. Standard library only.

Run as ``python -m tests.support.miniatures.vllm_server DEFECT --model DIR --served-model-name NAME --host H --port P``.
It must not import what it is there to judge, but for the questions.
"""

import argparse
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.answers.probes import FOLDER, Probe, function_call, read_probes
from tests.support.miniatures.vllm_world import DEFECTS, World

PROBES = read_probes(FOLDER / "nano.toml")
Message = dict[str, Any]


def right_message(probe: Probe) -> tuple[Message, str]:
    """The message and finish reason that answer a question right."""
    if probe.kind == "tool":
        call = {"id": "call_1", "type": "function", "function": function_call(probe.call)}
        return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    message = {"role": "assistant", "content": f"It is {' and '.join(probe.words)}."}
    if probe.kind == "thinking":
        message["reasoning"] = f"I think of {', '.join(probe.reasoning)}."
    return message, "stop"


def spoil(message: Message, finish: str, how: str) -> tuple[Message, str]:
    """The same with one thing wrong."""
    message = json.loads(json.dumps(message))
    function = message["tool_calls"][0]["function"] if message.get("tool_calls") else {}
    if how == "other words":
        message["content"] = "The capital of Ghana is Accra."
    elif how == "all words":
        words = [word for probe in PROBES.of("text") for word in probe.words]
        message["content"] = " ".join(words * 12)
    elif how == "no reasoning":
        message["reasoning"] = ""
    elif how == "old name":
        message["reasoning_content"] = message.pop("reasoning")
    elif how == "other name":
        function["name"] = "get_time"
    elif how == "other argument":
        function["arguments"] = '{"city": "Accra"}'
    elif how == "not JSON":
        function["arguments"] = "city: Lima"
    elif how == "as text":
        return {"role": "assistant", "content": "call:get_weather{city:Lima}"}, "stop"
    elif how == "cut off":
        return message, "length"
    return message, finish


class Handler(BaseHTTPRequestHandler):
    """Acts a world out."""

    world: World
    served: str

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the boot log is the world's."""

    def do_GET(self) -> None:
        """Health, models and metrics."""
        if self.path == "/health":
            self._send(self.world.health, b"")
        elif self.path == "/v1/models":
            self._json(200, {"data": [{"id": self.world.served or self.served}]})
        elif self.path == "/metrics":
            labels = f'enable_prefix_caching="True",kv_cache_size_tokens="{self.world.kv_metrics}"'
            self._send(
                200, f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1.0\n".encode()
            )
        else:
            self._send(404, b"")

    def do_POST(self) -> None:
        """Completions, chat and tokens."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.world.dies == "first request":
            sys.stdout.write("RuntimeError: module 'triton' has no attribute 'next_power_of_2'\n")
            sys.stdout.flush()
            os._exit(1)
        routes = {
            "/tokenize": self._tokenize,
            "/v1/completions": self._complete,
            "/v1/chat/completions": self._chat,
        }
        routes[self.path](body)

    def _send(self, status: int, content: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _json(self, status: int, content: object) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def _tokenize(self, body: dict[str, Any]) -> None:
        self._json(200, {"tokens": list(body["prompt"].encode())})

    def _complete(self, body: dict[str, Any]) -> None:
        choice: dict[str, Any] = {"text": "x", "finish_reason": "length"}
        if "prompt_logprobs" in body:
            choice["prompt_logprobs"] = [None, *map(self._logprobs, body["prompt"][1:])]
        self._json(200, {"choices": [choice], "usage": {"completion_tokens": self.world.tokens}})

    def _logprobs(self, token: int) -> dict[str, Any]:
        likely = self.world.logprob_factor * -0.2
        other = math.log(1 - math.exp(likely))
        return {str(token): {"logprob": likely, "rank": 1}, str(token + 1000): {"logprob": other, "rank": 2}}

    def _chat(self, body: dict[str, Any]) -> None:
        if isinstance(body["messages"][0]["content"], list):
            error = {
                "error": {"message": "At most 0 image(s) may be provided", "code": self.world.image_status}
            }
            good = {
                "choices": [
                    {"message": {"role": "assistant", "content": "A pixel."}, "finish_reason": "stop"}
                ]
            }
            self._json(self.world.image_status, good if self.world.image_status == 200 else error)
            return
        kind_of = [each for each in PROBES.questions if each.messages() == body["messages"]]
        probe = kind_of[0]
        how = self.world.answers.get(probe.kind, "")
        message, finish = spoil(*right_message(probe), how)
        if body.get("stream"):
            self._stream(message, finish, how)
        else:
            self._json(200, {"choices": [{"index": 0, "message": message, "finish_reason": finish}]})

    def _stream(self, message: Message, finish: str, how: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in self._events(message, finish, how):
            self.wfile.write(f"data: {event}\n\n".encode())

    def _events(self, message: Message, finish: str, how: str) -> Iterator[str]:
        for word in message["content"].split(" "):
            yield json.dumps(
                {"choices": [{"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None}]}
            )
        if how == "error event":
            yield json.dumps({"error": {"message": "EngineCore encountered an issue", "code": 500}})
        elif how != "no finish":
            yield json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        yield "[DONE]"


def boot(world: World) -> None:
    """Write the boot log; die or dawdle where the world says so."""
    for _ in range(world.starts):
        for line in world.log:
            values = {"quantization": world.quantization, "kernel": world.kernel, "held": world.held}
            print(line.format(**values, kv=world.kv_log), flush=True)
    if world.dies == "boot":
        raise SystemExit("ValueError: there is no module or parameter named 'lm_head.weight_packed'")
    time.sleep(world.listens_after_s)


def main() -> None:
    """Parse vLLM's arguments and serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("defect", choices=DEFECTS)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    known, _ = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as process 1 of a container it has no default
    Handler.world, Handler.served = DEFECTS[known.defect], known.served_model_name
    boot(Handler.world)
    ThreadingHTTPServer((known.host, known.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
