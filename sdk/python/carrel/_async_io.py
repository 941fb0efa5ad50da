"""What the asynchronous client does with the operating system. _sync_io.py has the same words."""
from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from ._host import Host
from ._reach import unreachable
from .errors import DeadlineExceeded

_T = TypeVar("_T")

# What yields things until it is closed.
Items = AsyncGenerator[_T, None]
Lock = asyncio.Lock
Slots = asyncio.Semaphore
sleep = asyncio.sleep


class Socket:
    """A connection that one task may read while another writes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.deadline: float | None = None

    @classmethod
    async def connect(cls, host: Host, deadline: float | None) -> Socket:
        timeout = 30.0 if deadline is None else max(0.001, min(30.0, deadline - time.monotonic()))
        writer: asyncio.StreamWriter | None = None
        try:
            if host.socket:
                return cls(*await asyncio.wait_for(asyncio.open_unix_connection(host.socket, limit=1 << 18), timeout))
            reader, w = await asyncio.wait_for(
                asyncio.open_connection(host.name, host.port, ssl=host.context(), server_hostname=host.name, limit=1 << 18), timeout
            )
            writer = w
            raw = w.get_extra_info("socket")
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            host.check(w.get_extra_info("ssl_object").getpeercert(True))
            return cls(reader, w)
        except (OSError, ssl.SSLError, asyncio.TimeoutError) as e:
            if writer is not None:
                writer.transport.abort()
            raise unreachable(host, e) from e
        except BaseException:
            if writer is not None:
                writer.transport.abort()
            raise

    async def _in_time(self, c: Coroutine[Any, Any, Any]) -> Any:
        if self.deadline is None:
            return await c
        try:
            return await asyncio.wait_for(c, max(0.0, self.deadline - time.monotonic()))
        except asyncio.TimeoutError:
            raise DeadlineExceeded(
                "cannot wait any longer: the time that the client gave is over; give a longer timeout, or try again"
            ) from None

    async def read(self) -> bytes:
        """Some bytes, none at the end."""
        got: bytes = await self._in_time(self._reader.read(1 << 18))
        return got

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._in_time(self._writer.drain())

    def quiet(self) -> bool:
        """It is open and has nothing to read, as a connection between two requests."""
        return not self._reader.at_eof() and not self._writer.is_closing() and not getattr(self._reader, "_buffer", b"")

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._writer.transport.abort()


class Task:
    """Something that runs beside. join returns its error, if it had one."""

    def __init__(self, f: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._task = asyncio.ensure_future(f())

    async def join(self) -> BaseException | None:
        done, _ = await asyncio.wait([self._task])
        (task,) = done
        return asyncio.CancelledError() if task.cancelled() else task.exception()
