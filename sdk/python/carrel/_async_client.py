"""The client: calls, and what is not about one workspace."""
from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, List, TypeVar  # noqa: UP035  # list is a method here

from . import messages as m
from ._async_http import Transport
from ._async_io import Items, sleep
from ._async_workspace import Workspace
from ._host import host_from
from ._message import Message, Method
from ._result import milliseconds
from .errors import Unavailable

_Q = TypeVar("_Q", bound=Message)
_A = TypeVar("_A", bound=Message)

# How long to wait before a call is made again, in seconds.
_PAUSES = (0.1, 0.5)


class AsyncClient:
    """A client of one daemon. It connects when it first needs to.

    host is unix:///ABSOLUTE/PATH or https://HOST:PORT. Without it, it is CARREL_HOST, or the socket of this host, and what is not
    given besides comes from CARREL_TOKEN, CARREL_TOKEN_FILE, CARREL_FINGERPRINT and CARREL_CA_FILE. A token file may be read
    by its owner only. With a fingerprint the daemon's key is what counts; without, ca_file or the system's authorities.

    timeout bounds, in seconds, calls that do not wait for a command; 0 is none. There are at most max_connections connections:
    what is more waits.

    A call that only reads, or that has a request id, is made again when the connection breaks. A command is sent once.
    """

    def __init__(
        self, host: str | None = None, *, token: str | None = None, token_file: str | None = None, fingerprint: str | None = None,
        ca_file: str | None = None, timeout: float = 120.0, max_connections: int = 32,
    ) -> None:  # fmt: skip
        self._transport = Transport(host_from(host, token, token_file, fingerprint, ca_file), max_connections, timeout)
        self.workspaces = Workspaces(self)
        self.approvals = Approvals(self)
        self.secrets = Secrets(self)

    def __repr__(self) -> str:
        return f"<carrel client of {self._transport.host}>"

    @property
    def host(self) -> str:
        """The daemon."""
        return str(self._transport.host)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes idle connections. Running calls go on."""
        await self._transport.close()

    async def call(self, method: Method[_Q, _A], request: _Q, *, timeout: float | None = None) -> _A:
        """Calls a method that has one request and one answer. timeout is in seconds, 0 is none, None that of the client."""
        again = method.repeatable
        if getattr(request, "request_id", None) == "":
            setattr(request, "request_id", uuid.uuid4().hex)  # noqa: B010  # not every request has it
        again = again or bool(getattr(request, "request_id", ""))
        message = request.to_json()
        for pause in _PAUSES if again else ():
            try:
                return method.response.from_json(await self._transport.call(method.path, message, timeout))
            except Unavailable:
                await sleep(pause)
        return method.response.from_json(await self._transport.call(method.path, message, timeout))

    async def watch(self, method: Method[_Q, _A], request: _Q) -> Items[_A]:
        """The answers of a method that returns a stream. Close the iterator, or leave its loop, to end it."""
        s = await self._transport.open(method.path, [request.to_json()], False)
        try:
            while (j := await s.receive()) is not None:
                yield method.response.from_json(j)
        finally:
            await s.close()

    def events(self, workspaces: Sequence[str] = (), *, after: int = 0) -> Items[m.WatchResponse]:
        """What happens to workspaces, from now on; without names to all that the caller may reach."""
        return self.watch(m.WorkspaceService.Watch, m.WatchRequest(workspaces=list(workspaces), after=after))

    async def whoami(self) -> m.WhoAmIResponse:
        """Who the daemon takes the caller for."""
        return await self.call(m.TokenService.WhoAmI, m.WhoAmIRequest())

    async def version(self) -> m.VersionResponse:
        """The daemon's release."""
        return await self.call(m.SystemService.Version, m.VersionRequest())


class Workspaces:
    """Workspaces by key or name."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    def __call__(self, ref: str) -> Workspace:
        """A workspace that is there, by its key or name. Nothing is asked yet."""
        return Workspace(self._client, ref)

    async def create(
        self, key: str, *, profile: str = "", limits: m.Limits | None = None, start: bool = True, ttl: float | None = None,
        idle_timeout: float | None = None, allow: Sequence[str] = (), reach_allow: Sequence[str] = (), reach_deny: Sequence[str] = (),
        reach_ask: Sequence[str] = (), secrets: Sequence[str] = (), secret_files: Sequence[str] = (),
        secret_templates: Mapping[str, str] | None = None, models: Sequence[m.ModelUse] = (), model_budget: m.ModelBudget | None = None,
        one_use: bool = False, approval_wait: float | None = None,
    ) -> Workspace:  # fmt: skip
        """Makes the workspace for a key and starts it, or returns the one there is. ttl and idle_timeout are in seconds. One for one use
        is destroyed some days after it was made if you do not do it."""
        r = await self._client.call(
            m.WorkspaceService.Create,
            m.CreateRequest(
                key=key, profile=profile, limits=limits, no_start=not start, ttl_ms=milliseconds(ttl),
                idle_timeout_ms=milliseconds(idle_timeout), allow=list(allow), reach_allow=list(reach_allow), reach_deny=list(reach_deny),
                reach_ask=list(reach_ask), secrets=list(secrets), secret_files=list(secret_files),
                secret_templates=dict(secret_templates or {}), models=list(models), model_budget=model_budget,
                one_use=one_use, approval_wait_ms=milliseconds(approval_wait),
            ),
            timeout=0 if approval_wait else None,
        )  # fmt: skip
        return Workspace(self._client, key, r.workspace)

    async def get(self, ref: str) -> Workspace:
        """A workspace that is there; NotFound if it is not."""
        w = Workspace(self._client, ref)
        await w.get()
        return w

    async def list(self) -> List[Workspace]:
        """Those that the caller may reach."""
        r = await self._client.call(m.WorkspaceService.List, m.ListRequest())
        return [Workspace(self._client, w.name, w) for w in r.workspaces]

    async def stats(self) -> List[m.Usage]:
        """What those that run use."""
        return (await self._client.call(m.WorkspaceService.Stats, m.StatsRequest())).usage


class Approvals:
    """What a person is asked about before it is done."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self, *, state: str = "", workspace: str = "") -> List[m.Approval]:
        """Approvals, the newest first. state is pending, approved, denied, spent or expired; empty is all."""
        out: list[m.Approval] = []
        r = m.ListApprovalsRequest(state=state, workspace=workspace)
        while True:
            a = await self._client.call(m.ApprovalService.ListApprovals, r)
            out += a.approvals
            if not a.next_page_token:
                return out
            r.page_token = a.next_page_token

    async def get(self, approval: str) -> m.Approval:
        """One approval, with its parts."""
        return (await self._client.call(m.ApprovalService.GetApproval, m.GetApprovalRequest(id=approval))).approval or m.Approval()

    async def answer(self, approval: str, kind: str, *, reason: str = "") -> m.Approval:
        """Answers one: once, thread, always or deny. Who asked for what a program wrote cannot approve it."""
        r = m.AnswerApprovalRequest(id=approval, kind=kind, reason=reason)
        return (await self._client.call(m.ApprovalService.AnswerApproval, r)).approval or m.Approval()

    async def approve(self, approval: str, *, reason: str = "") -> m.Approval:
        """Lets it be done once."""
        return await self.answer(approval, "once", reason=reason)

    async def deny(self, approval: str, *, reason: str = "") -> m.Approval:
        """Refuses it."""
        return await self.answer(approval, "deny", reason=reason)

    async def allow(self, argv: Sequence[str], *, workspace: str = "", everybody: bool = False) -> m.Permission:
        """Lets commands of a shape pass unasked, until revoke. Without a workspace it is for all of the caller's. No token may do it."""
        r = m.AllowCommandRequest(argv=list(argv), workspace=workspace, everybody=everybody)
        return (await self._client.call(m.ApprovalService.AllowCommand, r)).permission or m.Permission()

    async def permissions(self, *, workspace: str = "", thread: str = "") -> List[m.Permission]:
        """What answers for a thread, and allow, let pass."""
        r = m.ListPermissionsRequest(workspace=workspace, thread=thread)
        return (await self._client.call(m.ApprovalService.ListPermissions, r)).permissions

    async def revoke(self, permission: str) -> None:
        """Takes a permission back."""
        await self._client.call(m.ApprovalService.RevokePermission, m.RevokePermissionRequest(id=permission))

    async def watch(self) -> Items[m.Approval]:
        """Those that are pending, and from then on each as it changes."""
        async with aclosing(self._client.watch(m.ApprovalService.WatchApprovals, m.WatchApprovalsRequest())) as s:
            async for a in s:
                if a.approval is not None:
                    yield a.approval


class Secrets:
    """Secrets that the daemon keeps for the caller's workspaces. No call returns a value."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def set(self, name: str, value: str, **limits: Any) -> m.Secret:
        """Keeps a secret. limits are hosts, headers, inject, methods, paths and json, as SetSecretRequest has them."""
        r = m.SetSecretRequest(name=name, value=value, **limits)
        return (await self._client.call(m.SecretService.SetSecret, r)).secret or m.Secret()

    async def rotate(self, name: str, value: str) -> m.Secret:
        """Gives a secret another value."""
        r = await self._client.call(m.SecretService.RotateSecret, m.RotateSecretRequest(name=name, value=value))
        return r.secret or m.Secret()

    async def list(self) -> List[m.Secret]:
        """The caller's secrets by name, without their values."""
        return (await self._client.call(m.SecretService.ListSecrets, m.ListSecretsRequest())).secrets

    async def remove(self, name: str) -> None:
        """Removes a secret."""
        await self._client.call(m.SecretService.RemoveSecret, m.RemoveSecretRequest(name=name))
