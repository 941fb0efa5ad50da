"""What the asynchronous client does with the operating system. _sync_io.py has the same words."""
from __future__ import annotations

import asyncio
import select
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
    """A connection that one task may read while another writes. It is no transport of asyncio: that one forgets what came
    when it cannot write, and a daemon that takes no more of a request says why before it closes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._waiting = 0
        self._closed = False
        self.deadline: float | None = None

    @classmethod
    async def connect(cls, host: Host, deadline: float | None) -> Socket:
        end = time.monotonic() + 30.0 if deadline is None else min(time.monotonic() + 30.0, deadline)
        s: Socket | None = None
        try:
            loop = asyncio.get_running_loop()
            places: list[tuple[Any, ...]] = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", host.socket)]
            if not host.socket:
                lookup = loop.getaddrinfo(host.name, host.port, type=socket.SOCK_STREAM)
                places = await asyncio.wait_for(lookup, max(0.001, end - time.monotonic()))
            for i, (family, kind, proto, _, address) in enumerate(places):
                s = cls(socket.socket(family, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, proto))
                try:
                    await asyncio.wait_for(loop.sock_connect(s._sock, address), max(0.001, end - time.monotonic()))
                    break
                except OSError:
                    s.close()
                    if i == len(places) - 1:
                        raise
            assert s is not None
            if not host.socket:
                s.deadline = end
                await s._handshake(host)
                s.deadline = None
            return s
        except BaseException as e:
            if s is not None:
                s.close()
            if isinstance(e, (OSError, ssl.SSLError, asyncio.TimeoutError, DeadlineExceeded)):
                raise unreachable(host, e) from e
            raise

    async def _handshake(self, host: Host) -> None:
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._tls = host.context().wrap_bio(self._incoming, self._outgoing, server_hostname=host.name)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
        await self._flush()
        host.check(self._tls.getpeercert(True))

    async def _do(self, c: Coroutine[Any, Any, Any]) -> Any:
        """Waits for the socket. One that is closed meanwhile goes with the last who waits for it."""
        if self._closed:
            c.close()
            raise ConnectionError("it was closed")
        self._waiting += 1
        try:
            if self.deadline is None:
                return await c
            return await asyncio.wait_for(c, max(0.0, self.deadline - time.monotonic()))
        except asyncio.TimeoutError:
            raise DeadlineExceeded(
                "cannot wait any longer: the time that the client gave is over; give a longer timeout, or try again"
            ) from None
        finally:
            self._waiting -= 1
            if self._closed and not self._waiting:
                self._sock.close()

    async def _fill(self) -> None:
        got = await self._do(self._loop.sock_recv(self._sock, 1 << 18))
        if got:
            self._incoming.write(got)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        async with self._sending:
            if self._outgoing.pending:
                await self._do(self._loop.sock_sendall(self._sock, self._outgoing.read()))

    async def read(self) -> bytes:
        """Some bytes, none at the end."""
        if self._tls is None:
            got: bytes = await self._do(self._loop.sock_recv(self._sock, 1 << 18))
            return got
        while True:
            try:
                return self._tls.read(1 << 18)
            except ssl.SSLWantReadError:
                if self._outgoing.pending and not self._sending.locked():  # who writes may wait for what is read here
                    await self._flush()
                await self._fill()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def write(self, data: bytes) -> None:
        if self._tls is None:
            async with self._sending:
                await self._do(self._loop.sock_sendall(self._sock, data))
            return
        for at in range(0, len(data), 1 << 18):
            self._tls.write(data[at : at + (1 << 18)])
            await self._flush()

    def at_hand(self) -> bytes | None:
        """What has come, without waiting: None if there is nothing, and none at the end."""
        try:
            got = self._sock.recv(1 << 18)
            if self._tls is None:
                return got
            if got:
                self._incoming.write(got)
            else:
                self._incoming.write_eof()
            return self._tls.read(1 << 18)
        except (ssl.SSLWantReadError, BlockingIOError):
            return None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def quiet(self) -> bool:
        """It is open and has nothing to read, as a connection between two requests."""
        p = select.poll()
        p.register(self._sock, select.POLLIN)
        return not self._closed and not self._incoming.pending and not p.poll(0)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes who waits
        except OSError:
            pass
        if not self._waiting:
            self._sock.close()


class Task:
    """Something that runs beside. join returns its error, if it had one."""

    def __init__(self, f: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._task = asyncio.ensure_future(f())

    async def join(self) -> BaseException | None:
        await asyncio.wait([self._task])
        return asyncio.CancelledError() if self._task.cancelled() else self._task.exception()
