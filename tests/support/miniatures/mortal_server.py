"""A server whose engine dies in the middle of an answer, as vLLM's does: its API lives on for a while, and says so.

Run as ``python -m tests.support.miniatures.mortal_server MODEL NTH``: the server of that model dies at its nth
streamed request. Imported by nobody.
"""

import argparse
import asyncio
import os
import threading
from typing import Any

from aiohttp import web

from tests.support.miniatures.stream_server import Script, StreamServer, Truth

SCRIPT = Script(first_s=0.02, per_token_s=0.01, breaks="error")
LIVES_ON_S = 2.0  # vLLM's API server looks every 5 s whether its engine still lives


class MortalServer(StreamServer):
    """A streaming server, ready for a sweep, that dies at a request; 0: never."""

    def __init__(self, port: int, model: str, dies_at: int) -> None:
        super().__init__(SCRIPT, port, model)
        self.dies_at = dies_at
        self.dead = False

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.dead else 200)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if not (await request.json()).get("stream"):
            return web.json_response({"choices": [], "usage": {"completion_tokens": 1}})
        return await super()._answer(request)

    async def _stream(
        self, request: web.Request, body: dict[str, Any], truth: Truth, breaks: bool
    ) -> web.StreamResponse:
        return await super()._stream(request, body, truth, len(self.truths) == self.dies_at)

    async def _break(self, request: web.Request) -> bytes:
        if not self.dead:
            self.dead = True
            print("EngineCore encountered a fatal error: out of luck", flush=True)
            asyncio.get_running_loop().call_later(LIVES_ON_S, os._exit, 1)
        return await super()._break(request)


def main() -> None:
    """Parse vLLM's arguments and serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mortal")
    parser.add_argument("dies_at", type=int)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--port", type=int, required=True)
    known, _ = parser.parse_known_args()
    dies_at = known.dies_at if known.served_model_name == known.mortal else 0
    with MortalServer(known.port, known.served_model_name, dies_at):
        print("Application startup complete", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
