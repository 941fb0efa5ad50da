"""What the asynchronous tests do at once. _sync_helpers.py has the same words for the synchronous ones."""
import asyncio
import os
import time


import carrel

CLIENT = carrel.AsyncClient


async def prepared():
    """Debugging, which unittest turns on, makes each step of a loop many times slower."""
    asyncio.get_running_loop().set_debug(False)


async def gather(functions):
    """Runs functions at the same time, and returns what they return, or their errors."""
    return await asyncio.gather(*(f() for f in functions), return_exceptions=True)


async def begin(function):
    """Runs a function beside. The result has cancel, which ends it as its user would."""
    return Beside(asyncio.ensure_future(function()))


class Beside:
    def __init__(self, task):
        self._task = task

    async def cancel(self):
        self._task.cancel()
        await asyncio.wait([self._task], timeout=60)
        return self._task.done()

    def done(self):
        return self._task.done()

    async def result(self):
        return await asyncio.wait_for(self._task, 60)


async def until(condition):
    """Waits for what has to become true."""
    end = time.monotonic() + 60
    while not await condition():
        if time.monotonic() > end:
            raise AssertionError("it did not become true in a minute")
        await asyncio.sleep(0.02)


class Cutter:
    """Stands between a client and the daemon's Unix socket, and cuts each connection after so many bytes of either direction."""

    def __init__(self, up=None, down=None):
        self.up, self.down = up, down
        self.connections = 0

    async def __aenter__(self):
        self._to = os.environ["CARREL_TEST_SOCKET"]
        self.path = os.path.join(os.environ["CARREL_TEST_DIR"], f"cut-{os.getpid()}-{id(self):x}.sock")
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        self._tasks = set()
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for t in list(self._tasks):
            t.cancel()
        os.unlink(self.path)

    async def _serve(self, r, w):
        self.connections += 1
        me = asyncio.current_task()
        self._tasks.add(me)
        try:
            fr, fw = await asyncio.open_unix_connection(self._to)
            a = asyncio.ensure_future(self._copy(r, fw, self.up))
            b = asyncio.ensure_future(self._copy(fr, w, self.down))
            await asyncio.wait([a, b], return_when=asyncio.FIRST_COMPLETED)
            for t in (a, b):
                t.cancel()
            fw.transport.abort()
        finally:
            w.transport.abort()
            self._tasks.discard(me)

    @staticmethod
    async def _copy(r, w, most):
        left = most
        while data := await r.read(4096):
            if left is not None:
                data = data[:left]
                left -= len(data)
            w.write(data)
            await w.drain()
            if left == 0:
                return
