"""A workspace: its life, commands, terminals and what it may reach."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from . import messages as m
from ._async_command import WHOLE_INPUT, Command, Terminal
from ._async_files import Files
from ._async_io import Items
from ._async_port import Ports
from ._async_task import Tasks
from ._result import MAX_OUTPUT, OnOutput, Result, milliseconds
from ._spec import command_of
from .errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from ._async_client import AsyncClient


class Workspace:
    """A workspace of a client. info is what the daemon last said of it. Each method is one call of the API, or two.

    Times are in seconds.
    """

    def __init__(self, client: AsyncClient, ref: str, info: m.Workspace | None = None) -> None:
        self._client, self.ref = client, ref
        self.info = info
        self.files = Files(client, ref)
        self.egress = Egress(self)
        self.tasks = Tasks(self)
        self.ports = Ports(self)

    def __repr__(self) -> str:
        return f"<carrel.Workspace {self.ref}>"

    def _now(self, info: m.Workspace | None) -> Workspace:
        self.info = info or self.info
        return self

    async def get(self) -> m.Workspace:
        """What the daemon says of it now."""
        r = await self._client.call(m.WorkspaceService.Get, m.GetRequest(workspace=self.ref))
        self._now(r.workspace)
        return r.workspace or m.Workspace()

    async def start(self) -> Workspace:
        """Starts it."""
        return self._now((await self._client.call(m.WorkspaceService.Start, m.StartRequest(workspace=self.ref))).workspace)

    async def stop(self) -> Workspace:
        """Ends its commands and stops it."""
        return self._now((await self._client.call(m.WorkspaceService.Stop, m.StopRequest(workspace=self.ref))).workspace)

    async def pause(self) -> Workspace:
        """Freezes its commands."""
        return self._now((await self._client.call(m.WorkspaceService.Pause, m.PauseRequest(workspace=self.ref))).workspace)

    async def resume(self) -> Workspace:
        """Lets its commands go on."""
        return self._now((await self._client.call(m.WorkspaceService.Resume, m.ResumeRequest(workspace=self.ref))).workspace)

    async def revive(self) -> Workspace:
        """Brings it back, stopped, after destroy kept its home."""
        return self._now((await self._client.call(m.WorkspaceService.Revive, m.ReviveRequest(workspace=self.ref))).workspace)

    async def destroy(self, *, purge: bool = False) -> str:
        """Destroys it. Returns where its home was kept; with purge it is removed too."""
        r = await self._client.call(m.WorkspaceService.Destroy, m.DestroyRequest(workspace=self.ref, purge=purge))
        return r.retained_home

    async def update(self, change: m.UpdateRequest) -> Workspace:
        """Changes limits, key, lifetime, rules, secrets or models. The request's workspace is filled in."""
        change.workspace = self.ref
        r = await self._client.call(m.WorkspaceService.Update, change)
        if change.key:
            self.ref = change.key
            self.files = Files(self._client, self.ref)
        return self._now(r.workspace)

    async def exec(
        self, argv: Sequence[str], *, input: bytes | str | None = None, cwd: str = "", env: Mapping[str, str] | None = None,
        timeout: float | None = None, grace: float | None = None, on_stdout: OnOutput | None = None, on_stderr: OnOutput | None = None,
        max_output: int = MAX_OUTPUT, source: str = "", thread: str = "", approval_wait: float | None = None,
    ) -> Result:  # fmt: skip
        """Runs a command to its end. A stopped workspace is started first.

        The command is sent once and never again: after ConnectionLost it is not known how far it came, and the daemon has hung
        it up. If this call is cancelled, or raises, the command is hung up too. timeout ends the command. source is "user" for
        what a person wrote; empty counts as a model's. approval_wait is how long to wait for a person's answer where one is
        needed; None is as the daemon is configured, and 0 raises NeedsApproval at once.
        """
        data = input.encode() if isinstance(input, str) else input or b""
        command = command_of(argv, cwd, env, timeout, grace, source, thread, approval_wait)
        first = [m.StreamRequest(start=m.StreamStart(workspace=self.ref, command=command, stdin=bool(data))).to_json()]
        rest = b""
        if len(data) <= WHOLE_INPUT:
            if data:
                first.append(m.StreamRequest(stdin=data).to_json())
        else:
            rest = data
        c = await self._attach(first, bool(rest))
        try:
            return await c._collect(rest, max_output, on_stdout, on_stderr)
        finally:
            await c.close()

    async def start_command(
        self, argv: Sequence[str], *, stdin: bool = False, terminal: tuple[int, int] | None = None, cwd: str = "",
        env: Mapping[str, str] | None = None, timeout: float | None = None, grace: float | None = None, source: str = "", thread: str = "",
        approval_wait: float | None = None,
    ) -> Command:  # fmt: skip
        """Starts a command and returns it, to write to and to read from. terminal is rows and columns. Arguments are as of exec."""
        command = command_of(argv, cwd, env, timeout, grace, source, thread, approval_wait)
        start = m.StreamStart(workspace=self.ref, command=command, stdin=stdin)
        if terminal is not None:
            start.terminal = m.WindowSize(rows=terminal[0], cols=terminal[1])
        return await self._attach([m.StreamRequest(start=start).to_json()], stdin or terminal is not None)

    async def _attach(self, first: list[dict[str, object]], more: bool) -> Command:
        c = Command(self, await self._client._transport.open(m.CommandService.Stream.path, first, more))
        try:
            await c._begin()
        except BaseException:
            await c.close()
            raise
        return c

    async def detach(
        self, argv: Sequence[str], *, cwd: str = "", env: Mapping[str, str] | None = None, timeout: float | None = None,
        grace: float | None = None, output_limit: int = 0, terminal: tuple[int, int] | None = None, session: str = "", record: bool = False,
        source: str = "", thread: str = "", approval_wait: float | None = None,
    ) -> str:  # fmt: skip
        """Starts a command that outlives this client and the daemon, and returns its id. output_limit bytes of its output are kept,
        1 MiB unless told otherwise."""
        r = m.DetachRequest(
            workspace=self.ref, command=command_of(argv, cwd, env, timeout, grace, source, thread, approval_wait), output_limit=output_limit,
            session=session, record=record,
        )  # fmt: skip
        if terminal is not None:
            r.terminal = m.WindowSize(rows=terminal[0], cols=terminal[1])
        return (await self._client.call(m.CommandService.Detach, r, timeout=0)).command_id

    async def commands(self) -> list[m.CommandInfo]:
        """Its commands, and detached ones that have ended and are remembered."""
        return (await self._client.call(m.CommandService.ListCommands, m.ListCommandsRequest(workspace=self.ref))).commands

    def logs(self, command_id: str, *, follow: bool = False) -> Items[m.LogsResponse]:
        """What is kept of a detached command's output and, with follow, what comes until it ends. The last one has the status."""
        return self._client.watch(m.CommandService.Logs, m.LogsRequest(workspace=self.ref, command_id=command_id, follow=follow))

    async def wait(self, command_id: str) -> m.Status:
        """Waits for the end of a command."""
        r = await self._client.call(m.CommandService.Wait, m.WaitRequest(workspace=self.ref, command_id=command_id), timeout=0)
        return r.status or m.Status()

    async def signal(self, command_id: str, signal: int = 0, grace: float | None = None) -> None:
        """Sends a signal to a command's process group; 0 ends the command: TERM, the grace, KILL."""
        await self._client.call(
            m.CommandService.Signal,
            m.SignalRequest(workspace=self.ref, command_id=command_id, signal=signal, grace_ms=milliseconds(grace)),
        )

    async def resize(self, command_id: str, rows: int, cols: int) -> None:
        """Sets the size of a command's terminal."""
        size = m.WindowSize(rows=rows, cols=cols)
        await self._client.call(m.CommandService.Resize, m.ResizeRequest(workspace=self.ref, command_id=command_id, size=size))

    async def explain(self, argv: Sequence[str], *, cwd: str = "", env: Mapping[str, str] | None = None) -> m.ExplainResponse:
        """How a command would be judged. decision is JSON."""
        command = command_of(argv, cwd, env, None, None, "", "", None)
        return await self._client.call(m.CommandService.Explain, m.ExplainRequest(workspace=self.ref, command=command))

    async def terminal(
        self, session: str = "main", *, rows: int = 24, cols: int = 80, argv: Sequence[str] = ("bash", "-l"), read_only: bool = False,
        record: bool = False, source: str = "",
    ) -> Terminal:  # fmt: skip
        """Joins a session, and opens it with argv if there is none. With read_only it looks on, and nothing is opened."""
        for _ in range(3):  # it may end, or be opened by another, between the calls
            try:
                return await self._join(session, rows, cols, read_only)
            except NotFound:
                if read_only:
                    raise
            try:
                await self.detach(argv, terminal=(rows, cols), session=session, record=record, source=source)
            except AlreadyExists:
                pass
        return await self._join(session, rows, cols, read_only)

    async def _join(self, session: str, rows: int, cols: int, read_only: bool) -> Terminal:
        ids = [c.command_id for c in await self.commands() if c.session == session and c.status is None]
        if not ids:
            raise NotFound(f'cannot join session {session} of {self.ref}: there is none; "carrel shell {self.ref}" opens one')
        start = m.JoinStart(workspace=self.ref, command_id=ids[0], size=m.WindowSize(rows=rows, cols=cols), read_only=read_only)
        stream = await self._client._transport.open(m.CommandService.Join.path, [m.JoinRequest(start=start).to_json()], True)
        t = Terminal(self, ids[0], stream)
        try:
            await t._begin()
        except BaseException:
            await t.close()
            raise
        return t

    async def stats(self) -> m.Usage | None:
        """What its commands use together, None while it does not run."""
        r = await self._client.call(m.WorkspaceService.Stats, m.StatsRequest(workspaces=[self.ref]))
        return r.usage[0] if r.usage else None

    def events(self, *, after: int = 0) -> Items[m.WatchResponse]:
        """What happens to it, from now on, or since the event with the number after."""
        return self._client.watch(m.WorkspaceService.Watch, m.WatchRequest(workspaces=[self.ref], after=after))


class Egress:
    """What a workspace may reach. Rules are texts, as docs/egress.md has them; they hold at once."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def allow(self, *rules: str) -> None:
        """Lets the workspace reach what the rules name."""
        await self._workspace.update(m.UpdateRequest(reach_allow=list(rules)))

    async def deny(self, *rules: str) -> None:
        """Refuses what the rules name, whatever others allow."""
        await self._workspace.update(m.UpdateRequest(reach_deny=list(rules)))

    async def ask(self, *rules: str) -> None:
        """Has a person asked about each connection that the rules name."""
        await self._workspace.update(m.UpdateRequest(reach_ask=list(rules)))

    async def remove(self, *rules: str) -> None:
        """Removes rules by their text."""
        await self._workspace.update(m.UpdateRequest(reach_remove=list(rules)))

    async def rules(self) -> m.Workspace:
        """The workspace, whose reach_allow, reach_ask, reach_deny and reach_approved are the rules."""
        return await self._workspace.get()

    async def test(self, *hosts: str) -> list[m.ReachVerdict]:
        """What the rules in force say of hosts. Nothing is connected to."""
        w = self._workspace
        return (await w._client.call(m.WorkspaceService.ExplainReach, m.ExplainReachRequest(workspace=w.ref, hosts=list(hosts)))).verdicts

    async def connections(self, *, after: int = 0) -> m.ListConnectionsResponse:
        """The connections that are open, and the newest that have ended or were refused."""
        w = self._workspace
        return await w._client.call(m.WorkspaceService.ListConnections, m.ListConnectionsRequest(workspace=w.ref, after=after))
