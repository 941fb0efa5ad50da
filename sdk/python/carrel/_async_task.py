"""Tasks: programs in a workspace that are given a prompt, report messages and ask for permissions."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, List  # noqa: UP035  # list is a method here

from . import messages as m
from ._async_io import Items, sleep
from ._spec import command_of
from .errors import ConnectionLost, Unavailable

if TYPE_CHECKING:
    from ._async_workspace import Workspace

# How long follow waits before it asks again, in seconds: a daemon that is started anew needs a moment.
_PAUSES = (0.1, 0.5, 2.0, 5.0)


class Tasks:
    """The tasks of a workspace. docs/tasks.md has what they are."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def __call__(self, task_id: str) -> Task:
        """A task that is there, by its id. Nothing is asked yet."""
        return Task(self._workspace, task_id)

    async def run(
        self, argv: Sequence[str], prompt: str, *, protocol: str = "", after: str = "", plan_only: bool = False, fd: int = 0, cwd: str = "",
        env: Mapping[str, str] | None = None, timeout: float | None = None, grace: float | None = None, source: str = "", thread: str = "",
        approval_wait: float | None = None,
    ) -> Task:  # fmt: skip
        """Starts a task and returns it once the daemon keeps it. It goes on without this client.

        protocol is carrel, acp, agent or agent-acp; empty is carrel. It is sent once and never again: after ConnectionLost look at list.
        timeout is how long the task may take, an hour unless told otherwise, and approval_wait how long a person may take to
        answer what it asks. Its permissions wait as approvals of the kind task.permission. With fd the program speaks on a socket
        that it inherits as this descriptor (CARREL_TASK_FD), and its output is kept: workspace.logs.
        """
        r = m.RunTaskRequest(
            workspace=self._workspace.ref, command=command_of(argv, cwd, env, timeout, grace, source, thread, approval_wait),
            protocol=protocol, prompt=prompt, after=after, plan_only=plan_only, fd=fd,
        )  # fmt: skip
        a = await self._workspace._client.call(m.TaskService.RunTask, r, timeout=0)
        return Task(self._workspace, a.task.id if a.task else "", a.task)

    async def list(self) -> List[m.Task]:
        """Those that are kept, the newest first."""
        r = m.ListTasksRequest(workspace=self._workspace.ref)
        return (await self._workspace._client.call(m.TaskService.ListTasks, r)).tasks


class Task:
    """A task of a workspace. info is what the daemon last said of it."""

    def __init__(self, workspace: Workspace, task_id: str, info: m.Task | None = None) -> None:
        self._workspace, self.id = workspace, task_id
        self.info = info

    def __repr__(self) -> str:
        return f"<carrel.Task {self.id} of {self._workspace.ref}>"

    def _now(self, info: m.Task | None) -> m.Task:
        self.info = info or self.info
        return self.info or m.Task()

    async def get(self) -> m.Task:
        """What the daemon says of it now."""
        r = m.GetTaskRequest(workspace=self._workspace.ref, task_id=self.id)
        return self._now((await self._workspace._client.call(m.TaskService.GetTask, r)).task)

    async def follow(self, *, after: int = 0, now: bool = False) -> Items[m.FollowTaskResponse]:
        """Its messages with greater numbers than after, in their order, and new ones until it ends. The last answer has the task.

        With now only those that there are. A message's body is JSON. lost counts those before it that are no longer kept. Where
        the connection breaks it goes on behind the last message, so that none comes twice and none is left out.
        """
        w, tries = self._workspace, 0
        while True:
            r = m.FollowTaskRequest(workspace=w.ref, task_id=self.id, after=after, now=now)
            try:
                async with aclosing(w._client.watch(m.TaskService.FollowTask, r)) as answers:
                    async for a in answers:
                        if a.message is not None:
                            after, tries = a.message.number, 0
                        if a.task is not None:
                            self._now(a.task)
                        yield a
                        if a.task is not None:
                            return
                raise ConnectionLost(f"cannot follow {self.id} any further: the stream ended before the task's state; follow it again")
            except Unavailable:
                if tries == len(_PAUSES):
                    raise
                await sleep(_PAUSES[tries])
                tries += 1

    async def wait(self) -> m.Task:
        """Waits for its end, and returns how it ended."""
        async with aclosing(self.follow(after=(await self.get()).last)) as answers:
            async for _ in answers:
                pass
        return self._now(None)

    async def stop(self) -> m.Task:
        """Asks it to stop, ends its program if it does not, and returns when it has ended."""
        r = m.StopTaskRequest(workspace=self._workspace.ref, task_id=self.id)
        return self._now((await self._workspace._client.call(m.TaskService.StopTask, r)).task)
