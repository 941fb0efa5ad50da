"""HTTP/1.1 and Connect, as far as carrel.v1 needs them: calls, and streams in both directions.

    head, body                                   a call
    head, envelope(start), envelope(…)  ◄►  envelope(…), envelope(end)    a stream

An envelope is a byte of flags (2 ends the stream), four bytes of length, and JSON. A stream whose request is known from the
start has a Content-Length and leaves its connection to the next request; any other has a connection of its own.
"""
from __future__ import annotations

import json
import time
from typing import Any

from ._async_io import Lock, Slots, Socket
from ._host import Host
from .errors import CarrelError, ConnectionLost, Internal, InvalidArgument, ResourceExhausted, error_of

# A daemon closes idle connections after three minutes.
_IDLE = 60.0
_MAX_IDLE = 16
_MAX_HEAD = 64 << 10
MAX_MESSAGE = 16 << 20


class Connection:
    """A socket, and what was read of it beyond what was used."""

    def __init__(self, sock: Socket) -> None:
        self.sock = sock
        self._buf = bytearray()
        self.since = 0.0
        self._left: int | None = 0  # of the body or the chunk; None: until the end of the connection
        self._chunked = False
        self._over = True
        self.keep = False

    async def _more(self) -> None:
        got = await self.sock.read()
        if not got:
            raise ConnectionError("the connection was closed")
        self._buf += got

    def came(self) -> bool:
        """Something has come, or the end. Over TLS a socket that can be read may hold no more than a ticket."""
        try:
            got = self.sock.at_hand()
        except (OSError, ValueError):
            return True
        self._buf += got or b""
        return got is not None

    async def _line(self) -> bytes:
        while (at := self._buf.find(b"\r\n")) < 0:
            if len(self._buf) > _MAX_HEAD:
                raise ConnectionError("the answer is no HTTP")
            await self._more()
        line = bytes(self._buf[:at])
        del self._buf[: at + 2]
        return line

    async def head(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of an answer."""
        while True:
            first = (await self._line()).split(b" ", 2)
            if len(first) < 2 or not first[0].startswith(b"HTTP/1.") or not first[1].isdigit():
                raise ConnectionError("the answer is no HTTP")
            headers: dict[str, str] = {}
            while line := await self._line():
                name, _, value = line.partition(b":")
                headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()
                if len(headers) > 100:
                    raise ConnectionError("the answer has too many headers")
            status = int(first[1])
            if status >= 200:
                break
        self.keep = headers.get("connection", "").lower() != "close"
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self._over = False
        if self._chunked:
            self._left = 0
        elif "content-length" in headers:
            self._left = int(headers["content-length"])
        else:
            self._left, self.keep = None, False
        return status, headers

    async def body(self) -> bytes:
        """A piece of the body, empty at its end."""
        if self._over:
            return b""
        if self._chunked and self._left == 0:
            self._left = int((await self._line()).partition(b";")[0], 16)
            if self._left == 0:
                while await self._line():
                    pass
                self._over = True
                return b""
        if self._left == 0:
            self._over = True
            return b""
        if not self._buf:
            if self._left is None:
                got = await self.sock.read()
                self._over = not got
                return got
            await self._more()
        n = len(self._buf) if self._left is None else min(self._left, len(self._buf))
        piece = bytes(self._buf[:n])
        del self._buf[:n]
        if self._left is not None:
            self._left -= n
            if self._chunked and self._left == 0:
                await self._line()
        return piece

    def reusable(self) -> bool:
        return self.keep and self._over and not self._buf

    def close(self) -> None:
        self.sock.close()


class Transport:
    """The connections of a client. There are never more than max_connections."""

    def __init__(self, host: Host, max_connections: int, timeout: float) -> None:
        self.host, self.timeout = host, timeout
        self._slots = Slots(max_connections)
        self._lock = Lock()
        self._idle: list[Connection] = []
        self._closed = False

    async def _take(self, deadline: float | None) -> Connection:
        await self._slots.acquire()
        try:
            async with self._lock:
                while self._idle:
                    c = self._idle.pop()
                    if time.monotonic() - c.since < _IDLE and c.sock.quiet():
                        return c
                    c.close()
            return Connection(await Socket.connect(self.host, deadline))
        except BaseException:
            self._slots.release()
            raise

    async def give(self, c: Connection) -> None:
        try:
            async with self._lock:
                if c.reusable() and not self._closed and len(self._idle) < _MAX_IDLE:
                    c.since, c.sock.deadline = time.monotonic(), None
                    self._idle.append(c)
                    return
            c.close()
        finally:
            self._slots.release()

    def drop(self, c: Connection) -> None:
        c.close()
        self._slots.release()

    async def close(self) -> None:
        """Closes idle connections. Running calls go on."""
        async with self._lock:
            self._closed = True
            for c in self._idle:
                c.close()
            self._idle.clear()

    def _head(self, path: str, kind: str, length: int | None) -> bytes:
        lines = [
            f"POST /carrel.v1.{path} HTTP/1.1",
            f"Host: {self.host.authority}",
            f"Content-Type: {kind}",
            "Connect-Protocol-Version: 1",
            "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}",
        ]
        if self.host.token:
            lines.append(f"Authorization: Bearer {self.host.token}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")

    async def call(self, path: str, message: dict[str, Any], timeout: float | None) -> dict[str, Any]:
        """One request and its answer. timeout 0 is none."""
        body = _json(message)
        seconds = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds if seconds else None
        c = await self._take(deadline)
        whole = False
        try:
            c.sock.deadline = deadline
            try:
                await c.sock.write(self._head(path, "application/json", len(body)) + body)
                status, _ = await c.head()
                pieces, size = [], 0
                while piece := await c.body():
                    pieces.append(piece)
                    size += len(piece)
                    if size > MAX_MESSAGE:
                        raise ResourceExhausted(f"cannot read the answer of {path}: it is longer than {MAX_MESSAGE} bytes", request=path)
            except (OSError, ValueError) as e:
                raise lost(path, e) from e
            whole = True
        finally:
            if whole:
                await self.give(c)
            else:
                self.drop(c)
        return _answer(path, status, b"".join(pieces))

    async def open(self, path: str, first: list[dict[str, Any]], more: bool) -> Stream:
        """A stream that begins with some messages. Without more they are all."""
        data = b"".join(_envelope(m) for m in first)
        c = await self._take(None)
        try:
            if more:
                await c.sock.write(self._head(path, "application/connect+json", None) + _chunk(data))
            else:
                await c.sock.write(self._head(path, "application/connect+json", len(data)) + data)
        except OSError as e:
            self.drop(c)
            raise lost(path, e) from e
        except BaseException:
            self.drop(c)
            raise
        return Stream(self, c, path, more)


class Stream:
    """An exchange. One task may send while another receives. It has to be closed."""

    def __init__(self, transport: Transport, c: Connection, path: str, sends: bool) -> None:
        self._transport, self._c, self._path, self._sends = transport, c, path, sends
        self._sending = Lock()
        self._buf = bytearray()
        self._began = self._ended = self._closed = False

    async def send(self, message: dict[str, Any]) -> None:
        """Sends a message."""
        async with self._sending:
            if not self._sends or self._closed:
                raise ConnectionLost(f"cannot send to {self._path}: the stream has ended", request=self._path)
            try:
                await self._c.sock.write(_chunk(_envelope(message)))
            except OSError as e:
                raise lost(self._path, e) from e

    async def end(self) -> None:
        """Says that nothing more comes."""
        async with self._sending:
            if self._sends and not self._closed:
                self._sends = False
                try:
                    await self._c.sock.write(b"0\r\n\r\n")
                except OSError as e:
                    raise lost(self._path, e) from e

    def answered(self) -> bool:
        """The daemon has begun to answer, or has gone."""
        return self._c.came()

    async def receive(self) -> dict[str, Any] | None:
        """The next message, None at the end of the stream."""
        if self._ended:
            return None
        try:
            if not self._began:
                status, headers = await self._c.head()
                self._began = True
                if status != 200 or not headers.get("content-type", "").startswith("application/connect+json"):
                    self._ended = True
                    body = b""
                    while (piece := await self._c.body()) and len(body) < _MAX_HEAD:
                        body += piece
                    _answer(self._path, status if status != 200 else 500, body)
            head = await self._exactly(5)
            size = int.from_bytes(head[1:5], "big")
            if size > MAX_MESSAGE:
                raise ResourceExhausted(f"cannot read a message of {self._path}: it is longer than {MAX_MESSAGE} bytes", request=self._path)
            text = await self._exactly(size)
            message = json.loads(text)
        except (OSError, ValueError) as e:
            self._ended = True
            raise lost(self._path, e) from e
        if not head[0] & 2:
            return message  # type: ignore[no-any-return]
        self._ended = True
        if error := message.get("error"):
            raise error_of(error.get("code", "unknown"), error.get("message", ""), self._path)
        return None

    async def _exactly(self, n: int) -> bytes:
        while len(self._buf) < n:
            piece = await self._c.body()
            if not piece:
                raise ConnectionError("the stream was cut off")
            self._buf += piece
        out = bytes(self._buf[:n])
        del self._buf[:n]
        return out

    async def finish(self, seconds: float) -> None:
        """Reads to the end of the stream, for no longer than that. What comes of it, and how it ends, is dropped."""
        self._c.sock.deadline = time.monotonic() + seconds
        try:
            while await self.receive() is not None:
                pass
        except CarrelError:
            pass

    async def close(self) -> None:
        """Ends the exchange. A connection that is at its end is kept."""
        if self._closed:
            return
        self._closed = True
        if self._ended and not self._sends and self._c.keep:
            try:
                self._c.sock.deadline = time.monotonic() + 5
                if not await self._c.body():
                    await self._transport.give(self._c)
                    return
            except (OSError, ValueError, CarrelError):
                pass
            except BaseException:
                self._transport.drop(self._c)
                raise
        self._transport.drop(self._c)


def lost(path: str, e: BaseException) -> ConnectionLost:
    return ConnectionLost(
        f"cannot tell how {path} ended: the connection to the daemon broke off: {e}; look at what is there before you ask again",
        request=path,
    )


def _json(message: dict[str, Any]) -> bytes:
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as e:
        raise InvalidArgument(
            f"cannot send {e.object[e.start : e.end]!r}: it is not valid UTF-8; pass such data by input, a file or raw_path"
        ) from None


def _envelope(message: dict[str, Any]) -> bytes:
    data = _json(message)
    return b"\0" + len(data).to_bytes(4, "big") + data


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _answer(path: str, status: int, body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body or b"{}")
    except ValueError:
        message = None
    if status == 200 and isinstance(message, dict):
        return message
    if isinstance(message, dict) and isinstance(message.get("code"), str):
        raise error_of(message["code"], str(message.get("message", "")), path)
    raise Internal(
        f"cannot read the answer of {path}: it has status {status} and is not what carrel sends; see that the host is right", request=path
    )
