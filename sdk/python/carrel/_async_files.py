"""The files of a workspace."""
from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, List  # noqa: UP035  # list is a method here

from . import messages as m
from ._async_command import PIECE
from ._async_http import Stream
from ._async_io import Items
from .errors import CarrelError, ConnectionLost, Unavailable

if TYPE_CHECKING:
    from ._async_client import AsyncClient


def _parts(path: str | bytes) -> tuple[str, bytes]:
    """The two fields of a path: bytes are for names that are no UTF-8."""
    return (path, b"") if isinstance(path, str) else ("", path)


class Files:
    """Files, with the rights of the workspace's commands. Paths are absolute, or relative to the home; a path may be bytes."""

    def __init__(self, client: AsyncClient, ref: str) -> None:
        self._client, self._ref = client, ref

    async def read(self, path: str | bytes, *, offset: int = 0, length: int = 0) -> bytes:
        """The bytes of a regular file, or length of them from offset; a length of 0 is to the end."""
        pieces: list[bytes] = []
        async with aclosing(self.stream(path, offset=offset, length=length)) as s:
            async for piece in s:
                pieces.append(piece)
        return b"".join(pieces)

    async def read_text(self, path: str | bytes) -> str:
        """A file as text in UTF-8."""
        return (await self.read(path)).decode()

    async def stream(self, path: str | bytes, *, offset: int = 0, length: int = 0) -> Items[bytes]:
        """As read, piece by piece. It raises Unavailable if the file was not read to its end."""
        text, raw = _parts(path)
        r = m.ReadFileRequest(workspace=self._ref, path=text, raw_path=raw, offset=offset, length=length)
        whole = False
        async with aclosing(self._client.watch(m.FileService.ReadFile, r)) as s:
            async for a in s:
                if a.file is not None:
                    whole = True
                elif a.data:
                    yield a.data
        if not whole:
            raise _broken()

    async def write(
        self, path: str | bytes, data: bytes | str | Iterable[bytes], *, mode: int | None = None, parents: bool = False, keep: bool = False
    ) -> m.FileEntry:
        """Writes a file whole: what was there stays until all is on disk. With keep a file that is there is AlreadyExists."""
        text, raw = _parts(path)
        start = m.WriteFileStart(workspace=self._ref, path=text, raw_path=raw, mode=mode, parents=parents, keep=keep)
        answer = await self._upload(
            m.FileService.WriteFile.path, m.WriteFileRequest(start=start).to_json(), data.encode() if isinstance(data, str) else data
        )
        return m.WriteFileResponse.from_json(answer).file or m.FileEntry()

    async def _upload(self, path: str, start: dict[str, object], data: bytes | Iterable[bytes]) -> dict[str, object]:
        s = await self._client._transport.open(path, [start], True)
        try:
            try:
                for piece in [data] if isinstance(data, bytes) else data:
                    for at in range(0, len(piece), PIECE):
                        if s.answered():  # before its end: the daemon takes no more
                            return await self._why(s)
                        await s.send(m.WriteFileRequest(data=piece[at : at + PIECE]).to_json())
                await s.send(m.WriteFileRequest(finish=True).to_json())
                await s.end()
            except ConnectionLost:
                return await self._why(s)
            answer = await s.receive()
            if answer is None:
                raise _broken()
            await s.receive()
            return answer
        finally:
            await s.close()

    async def _why(self, s: Stream) -> dict[str, object]:
        """Raises why the daemon took no more, which it has said before it closed the connection."""
        try:
            await s.receive()
        except CarrelError:
            raise
        raise _broken()

    async def list(self, path: str | bytes = "", *, depth: int = 1) -> List[m.FileEntry]:
        """The entries of a directory in the order of their paths, all pages of them."""
        text, raw = _parts(path)
        entries: list[m.FileEntry] = []
        r = m.ListFilesRequest(workspace=self._ref, path=text, raw_path=raw, depth=depth)
        while True:
            a = await self._client.call(m.FileService.ListFiles, r)
            entries += a.entries
            if not a.truncated or not a.entries:
                return entries
            r.after, r.raw_after = a.entries[-1].path, a.entries[-1].raw_path

    async def stat(self, path: str | bytes, *, follow: bool = False) -> m.FileEntry:
        """What a path is. follow follows a link."""
        text, raw = _parts(path)
        r = await self._client.call(m.FileService.StatFile, m.StatFileRequest(workspace=self._ref, path=text, raw_path=raw, follow=follow))
        return r.file or m.FileEntry()

    async def mkdir(self, path: str | bytes, *, mode: int | None = None, parents: bool = False) -> None:
        """Makes a directory. With parents those above too, and one that is there is no error."""
        text, raw = _parts(path)
        r = m.MakeDirectoryRequest(workspace=self._ref, path=text, raw_path=raw, mode=mode, parents=parents)
        await self._client.call(m.FileService.MakeDirectory, r)

    async def move(self, path: str | bytes, to: str | bytes, *, parents: bool = False, replace: bool = False) -> None:
        """Moves a file or a directory. With replace what is at `to` may be replaced."""
        (text, raw), (to_text, to_raw) = _parts(path), _parts(to)
        r = m.MoveFileRequest(
            workspace=self._ref, path=text, raw_path=raw, to=to_text, raw_to=to_raw, parents=parents, replace=replace
        )  # fmt: skip
        await self._client.call(m.FileService.MoveFile, r)

    async def remove(self, path: str | bytes, *, recursive: bool = False) -> None:
        """Removes a file, or with recursive a directory with all that is in it."""
        text, raw = _parts(path)
        await self._client.call(
            m.FileService.RemoveFile, m.RemoveFileRequest(workspace=self._ref, path=text, raw_path=raw, recursive=recursive), timeout=0
        )

    async def search(
        self, path: str | bytes = "", *, name: str = "", text: str = "", depth: int = 0, limit: int = 0
    ) -> m.SearchFilesResponse:
        """Names by pattern, and lines of text by regular expression (RE2), within bounds."""
        base, raw = _parts(path)
        r = m.SearchFilesRequest(workspace=self._ref, path=base, raw_path=raw, name=name, text=text, depth=depth, limit=limit)
        return await self._client.call(m.FileService.SearchFiles, r)

    async def changes(
        self, path: str | bytes = "", *, since: float = 0, limit: int = 0
    ) -> m.ListChangesResponse:
        """What was changed below a directory since a time in seconds, or since the workspace was made, what programs act on first."""
        base, raw = _parts(path)
        r = m.ListChangesRequest(workspace=self._ref, path=base, raw_path=raw, since_unix_ms=int(since * 1000), limit=limit)
        return await self._client.call(m.FileService.ListChanges, r)

    async def patches(self) -> List[m.FilePatch]:
        """The changes that agents made to files and that can be undone, those that were undone included. What runs in the workspace
        can change what is said of them."""
        return (await self._client.call(m.FileService.ListPatches, m.ListPatchesRequest(workspace=self._ref))).patches

    async def undo(self, change: str) -> str:
        """Brings back what was there before such a change: all files, or none if one has changed since. What it returns undoes that."""
        return (await self._client.call(m.FileService.UndoPatch, m.UndoPatchRequest(workspace=self._ref, id=change))).id

    async def watch(self, path: str | bytes = "", *, depth: int = 0) -> Items[m.FileEvent]:
        """What changes below a directory, from now on. The first event has an empty path and "ready" in what: from then on all is
        told."""
        base, raw = _parts(path)
        r = m.WatchFilesRequest(workspace=self._ref, path=base, raw_path=raw, depth=depth)
        ready = False
        async with aclosing(self._client.watch(m.FileService.WatchFiles, r)) as s:
            async for a in s:
                if not ready:
                    ready = True
                    yield m.FileEvent(what="ready", directory=True)
                for e in a.events:
                    yield e

    async def pack(self, path: str | bytes = "", *, as_: str = "") -> Items[bytes]:
        """A file or a tree as a tar stream. Names in it come from the workspace: unpack it as what a stranger sent."""
        base, raw = _parts(path)
        whole = False
        r = m.PackFilesRequest(workspace=self._ref, path=base, raw_path=raw, as_=as_)
        async with aclosing(self._client.watch(m.FileService.PackFiles, r)) as s:
            async for a in s:
                if a.summary is not None:
                    whole = True
                elif a.data:
                    yield a.data
        if not whole:
            raise _broken()

    async def unpack(self, path: str | bytes, data: bytes | Iterable[bytes], *, parents: bool = False) -> m.FilesSummary:
        """Makes what a tar stream has below a directory."""
        base, raw = _parts(path)
        start = m.UnpackFilesStart(workspace=self._ref, path=base, raw_path=raw, parents=parents)
        answer = await self._upload(m.FileService.UnpackFiles.path, m.UnpackFilesRequest(start=start).to_json(), data)
        return m.UnpackFilesResponse.from_json(answer).summary or m.FilesSummary()


def _broken() -> Unavailable:
    return Unavailable("cannot read all of it: the daemon broke off before its end; try again")
