"""A proxy in front of a real server that holds every piece back, so that the server looks slower than it is.

Runs in a thread of its own on a free loopback port. Imported by tests of the judge only.
"""

import asyncio
import threading
import time
from types import TracebackType

import aiohttp
from aiohttp import web


class DelayingProxy:
    """Forwards everything; a streamed answer takes `slowdown` times as long, piece by piece.

    Parameters
    ----------
    behind
        Root URL of the real server.
    slowdown
        1 forwards at once; 2 makes every wait twice as long.
    """

    def __init__(self, behind: str, slowdown: float) -> None:
        self.behind = behind
        self.slowdown = slowdown
        self.base_url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "DelayingProxy":
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
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _listen(self) -> None:
        self._session = aiohttp.ClientSession(self.behind, connector=aiohttp.TCPConnector(limit=0))
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.base_url = f"http://{host}:{port}"

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        begun_s = time.perf_counter()
        headers = {"Content-Type": request.headers.get("Content-Type", "")}
        body = await request.read()
        async with self._session.request(request.method, request.path, data=body, headers=headers) as behind:
            response = web.StreamResponse(status=behind.status, headers={"Content-Type": behind.content_type})
            await response.prepare(request)
            async for piece in behind.content.iter_any():
                came_s = time.perf_counter() - begun_s
                await asyncio.sleep((self.slowdown - 1) * came_s - (time.perf_counter() - begun_s - came_s))
                await response.write(piece)
            return response
