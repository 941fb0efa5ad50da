"""What the synchronous client does with the operating system. _async_io.py has the same words."""
from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from ._host import Host
from ._reach import unreachable
from .errors import DeadlineExceeded

_T = TypeVar("_T")

# What yields things until it is closed.
Items = Generator[_T, None, None]
Lock = threading.Lock
Slots = threading.Semaphore
sleep = time.sleep


class Socket:
    """A connection that one thread may read while another writes. It never blocks inside of TLS, which does not take two
    threads at once: it waits with poll, outside of the lock."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._lock = threading.Lock()
        self.deadline: float | None = None

    @classmethod
    def connect(cls, host: Host, deadline: float | None) -> Socket:
        timeout = 30.0 if deadline is None else max(0.001, min(30.0, deadline - time.monotonic()))
        raw = None
        try:
            if host.socket:
                raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
                raw.settimeout(timeout)
                raw.connect(host.socket)
                return cls(raw)
            raw = socket.create_connection((host.name, host.port), timeout)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            tls = host.context().wrap_socket(raw, server_hostname=host.name)
            raw = tls
            host.check(tls.getpeercert(True))
            return cls(tls)
        except (OSError, ssl.SSLError) as e:
            if raw is not None:
                raw.close()
            raise unreachable(host, e) from e
        except BaseException:
            if raw is not None:
                raw.close()
            raise

    def _try(self, f: Callable[[], Any], events: int) -> Any:
        while True:
            try:
                with self._lock:
                    return f()
            except ssl.SSLWantReadError:
                events = select.POLLIN
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            except BlockingIOError:
                pass
            self._wait(events)

    def _wait(self, events: int) -> None:
        p = select.poll()
        p.register(self._sock, events)
        if self.deadline is None:
            p.poll()
            return
        left = self.deadline - time.monotonic()
        if left <= 0 or not p.poll(left * 1000 + 1):
            raise DeadlineExceeded("cannot wait any longer: the time that the client gave is over; give a longer timeout, or try again")

    def read(self) -> bytes:
        """Some bytes, none at the end."""
        got: bytes = self._try(lambda: self._sock.recv(1 << 18), select.POLLIN)
        return got

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._try(lambda: self._sock.send(view[: 1 << 18]), select.POLLOUT) :]

    def at_hand(self) -> bytes | None:
        """What has come, without waiting: None if there is nothing, and none at the end."""
        try:
            with self._lock:
                return self._sock.recv(1 << 18)
        except (ssl.SSLWantReadError, BlockingIOError):
            return None

    def quiet(self) -> bool:
        """It is open and has nothing to read, as a connection between two requests."""
        p = select.poll()
        p.register(self._sock, select.POLLIN)
        return self._sock.fileno() >= 0 and not p.poll(0)

    def close(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes who waits
        except OSError:
            pass
        self._sock.close()


class Task:
    """Something that runs beside. join returns its error, if it had one."""

    def __init__(self, f: Callable[[], Any]) -> None:
        self._error: BaseException | None = None

        def run() -> None:
            try:
                f()
            except BaseException as e:  # noqa: BLE001  # join hands it on
                self._error = e

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def join(self) -> BaseException | None:
        self._thread.join()
        return self._error
