"""Ports of a workspace's loopback, by the daemon."""
from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING

from . import messages as m
from ._async_http import Stream
from .errors import Aborted, ConnectionLost

if TYPE_CHECKING:
    from ._async_workspace import Workspace

# How much of what is written one message carries, in bytes.
_PIECE = 32 << 10

# How long close waits for the daemon to agree that both sides have ended, in seconds.
_CLOSING = 10.0


class Ports:
    """TCP ports of a workspace's loopback. docs/protocols/ports.md has the rules."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def publish(self, port: int) -> PublishedPort:
        """Keeps a port open for this caller, who alone can connect to it, until close or the workspace's stop. It is judged and
        recorded once. Without it the first connection publishes the port, for as long as there are connections."""
        r = m.PublishRequest(workspace=self._workspace.ref, port=port)
        s = await self._workspace._client._transport.open(m.PortService.Publish.path, [r.to_json()], False)
        try:
            if await s.receive() is None:
                raise ConnectionLost(f"cannot tell whether port {port} is open: the stream ended before the answer; publish it again")
        except BaseException:
            await s.close()
            raise
        return PublishedPort(port, s)

    async def connect(self, port: int) -> PortConnection:
        """Connects to a port, by 127.0.0.1 inside and else by ::1. Unavailable: nothing listens there. FailedPrecondition: the
        workspace does not run; it is not started for this."""
        start = m.ConnectStart(workspace=self._workspace.ref, port=port)
        s = await self._workspace._client._transport.open(m.PortService.Connect.path, [m.ConnectRequest(start=start).to_json()], True)
        try:
            if await s.receive() is None:
                raise ConnectionLost(f"cannot connect to port {port}: the stream ended before the answer; connect again")
        except BaseException:
            await s.close()
            raise
        return PortConnection(s)


class PublishedPort:
    """A port that is kept open."""

    def __init__(self, port: int, stream: Stream) -> None:
        self.port, self._stream = port, stream

    async def __aenter__(self) -> PublishedPort:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def wait(self) -> None:
        """Waits until it is no longer open, and raises why."""
        while await self._stream.receive() is not None:
            pass

    async def close(self) -> None:
        """Closes the port. Connections that are there go on."""
        await self._stream.close()


class PortConnection:
    """A connection to a port. One task or thread may read while another writes. Iterate over it for what the service sends."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._closed = self._heard = False

    async def __aenter__(self) -> PortConnection:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def read(self) -> bytes:
        """Some bytes, none once the service has ended its side. What broke off before that is an error, as Aborted."""
        while not self._heard:
            j = await self._stream.receive()
            if j is None:
                raise Aborted("cannot read further: the connection was closed before the service had ended it; connect again")
            a = m.ConnectResponse.from_json(j)
            if a.end:
                self._heard = True
            elif a.data:
                return a.data
        return b""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if piece := await self.read():
            return piece
        raise StopAsyncIteration

    async def write(self, data: bytes) -> None:
        """Writes. It waits while the service does not read."""
        for at in range(0, len(data), _PIECE):
            await self._stream.send(m.ConnectRequest(data=data[at : at + _PIECE]).to_json())

    async def close_write(self) -> None:
        """Says that nothing more is written. What the service still sends can be read."""
        if not self._closed:
            self._closed = True
            await self._stream.end()

    async def close(self) -> None:
        """Ends the connection. Unless both sides have ended, it breaks off: the service sees a reset."""
        try:
            if self._closed and self._heard:  # else what the service has not read yet would be lost
                await self._stream.finish(_CLOSING)
        finally:
            await self._stream.close()
