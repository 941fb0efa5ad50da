"""Commands whose streams a client holds, and sessions that it joins."""
from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING

from ._async_http import Stream
from ._async_io import Task
from ._result import Collected, OnOutput, Output, Result
from .errors import ConnectionLost, FailedPrecondition
from .messages import JoinRequest, JoinResponse, Status, StreamRequest, StreamResponse, WindowSize

if TYPE_CHECKING:
    from ._async_workspace import Workspace

# How much stdin is sent with the request, and how much in a message after it, in bytes.
WHOLE_INPUT = 256 << 10
PIECE = 256 << 10


class Command:
    """A running command that this client is attached to. Iterate over it for its output, which has to be read: a command whose
    output is full waits. close, or the end of a with block, hangs it up.
    """

    def __init__(self, workspace: Workspace, stream: Stream) -> None:
        self._workspace, self._stream = workspace, stream
        self.id = ""
        self.status: Status | None = None

    async def __aenter__(self) -> Command:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _begin(self) -> None:
        m = await self._stream.receive()
        self.id = StreamResponse.from_json(m or {}).command_id or ""
        if not self.id:
            raise self._broken()

    def _broken(self) -> ConnectionLost:
        return ConnectionLost(
            f"cannot tell how {self.id or 'the command'} ended: the stream ended before it; the daemon hangs its commands up with that"
        )

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        while self.status is None:
            j = await self._stream.receive()
            if j is None:
                raise self._broken()
            m = StreamResponse.from_json(j)
            if m.exited is not None:
                self.status = m.exited
                while await self._stream.receive() is not None:
                    pass
            elif m.stdout:
                return Output("stdout", m.stdout)
            elif m.stderr:
                return Output("stderr", m.stderr)
        raise StopAsyncIteration

    async def write(self, data: bytes) -> None:
        """Writes to the command's stdin. It waits while the command does not read."""
        for at in range(0, len(data), PIECE):
            await self._stream.send(StreamRequest(stdin=data[at : at + PIECE]).to_json())

    async def close_stdin(self) -> None:
        """Ends the command's stdin."""
        await self._stream.end()

    async def resize(self, rows: int, cols: int) -> None:
        """Sets the size of its terminal."""
        await self._stream.send(StreamRequest(resize=WindowSize(rows=rows, cols=cols)).to_json())

    async def signal(self, signal: int) -> None:
        """Sends a signal to its process group. It passes by what waits for stdin."""
        await self._workspace.signal(self.id, signal)

    async def stop(self, grace: float | None = None) -> None:
        """Ends the command and all its processes: TERM, the grace in seconds, KILL."""
        await self._workspace.signal(self.id, 0, grace)

    async def wait(self) -> Status:
        """Reads its output to the end and drops it, and returns how the command ended."""
        async for _ in self:
            pass
        if self.status is None:
            raise self._broken()
        return self.status

    async def close(self) -> None:
        """Hangs the command up, if it still runs: HUP, TERM, KILL."""
        await self._stream.close()

    async def _collect(self, rest: bytes, most: int, on_stdout: OnOutput | None, on_stderr: OnOutput | None) -> Result:
        out, err = Collected(most), Collected(most)
        feeder = None
        if rest:

            async def feed() -> None:
                await self.write(rest)
                await self.close_stdin()

            feeder = Task(feed)
        try:
            async for o in self:
                if o.stream == "stdout":
                    out.add(o.data)
                    if on_stdout:
                        on_stdout(o.data)
                else:
                    err.add(o.data)
                    if on_stderr:
                        on_stderr(o.data)
        finally:
            if feeder is not None:
                await self.close()  # a command need not read all that it is given
                await feeder.join()
        if self.status is None:
            raise self._broken()
        return Result(self.id, self.status, out.all(), err.all(), out.lost, err.lost)


class Terminal:
    """A session that this client has joined. Iterate over it for what draws its terminal. close leaves the session, which goes
    on.
    """

    def __init__(self, workspace: Workspace, command_id: str, stream: Stream) -> None:
        self._workspace, self._stream = workspace, stream
        self.id = command_id
        self.client = 0
        self.status: Status | None = None

    async def __aenter__(self) -> Terminal:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _begin(self) -> None:
        m = await self._stream.receive()
        self.client = JoinResponse.from_json(m or {}).client or 0
        if not self.client:
            raise FailedPrecondition(
                f"cannot join session {self.id}: the daemon did not say which client this is; stop and start the workspace"
            )

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while (j := await self._stream.receive()) is not None:
            m = JoinResponse.from_json(j)
            if m.exited is not None:
                self.status = m.exited
            elif m.stdout:
                return m.stdout
        raise StopAsyncIteration

    async def write(self, data: bytes) -> None:
        """Types."""
        for at in range(0, len(data), PIECE):
            await self._stream.send(JoinRequest(stdin=data[at : at + PIECE]).to_json())

    async def resize(self, rows: int, cols: int) -> None:
        """Says that the client's window has another size."""
        await self._stream.send(JoinRequest(resize=WindowSize(rows=rows, cols=cols)).to_json())

    async def close(self) -> None:
        """Leaves the session."""
        await self._stream.close()
