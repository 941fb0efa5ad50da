"""Errors as types. Each has the code of the API, and a text that says what happened, why, and what to do next."""
from __future__ import annotations

import re
from typing import Any


class CarrelError(Exception):
    """An error of carrel. code is that of Connect; request says what was asked for, without its contents."""

    code = "unknown"

    def __init__(self, message: str, *, request: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.request = request

    @property
    def remedy(self) -> str:
        """What to do next: the part of the text behind the last semicolon, empty if there is none."""
        _, found, rest = self.message.rpartition("; ")
        return rest if found else ""


class InvalidArgument(CarrelError):
    """A field is wrong; the text names it."""

    code = "invalid_argument"


class NotFound(CarrelError):
    """There is no such workspace, command, file or program."""

    code = "not_found"


class AlreadyExists(CarrelError):
    """The name is taken."""

    code = "already_exists"


class PermissionDenied(CarrelError):
    """It is not the caller's, or policy or a person has refused it."""

    code = "permission_denied"


class Unauthenticated(CarrelError):
    """The token is not good, or the daemon's certificate is not the one that was expected."""

    code = "unauthenticated"


class FailedPrecondition(CarrelError):
    """The state forbids it, or a required control does not hold."""

    code = "failed_precondition"


class NeedsApproval(FailedPrecondition):
    """A person has to approve it first. The same request again takes their answer up.

    approval is the approval's id, and command what a person answers it with.
    """

    def __init__(self, message: str, approval: str, *, request: str = "") -> None:
        super().__init__(message, request=request)
        self.approval = approval

    @property
    def command(self) -> str:
        return f"carrel approvals approve {self.approval}"


class ResourceExhausted(CarrelError):
    """A limit is reached, or the daemon's disk is full."""

    code = "resource_exhausted"


class Unavailable(CarrelError):
    """The daemon, the broker or an executor is gone. Trying again may help."""

    code = "unavailable"


class ConnectionLost(Unavailable):
    """The connection ended before the answer. It is not known whether what was asked for was done.

    A command that was attached to the connection is hung up by the daemon.
    """


class Aborted(CarrelError):
    """Another operation came between."""

    code = "aborted"


class DeadlineExceeded(CarrelError):
    """The time that the client gave is over."""

    code = "deadline_exceeded"


class Canceled(CarrelError):
    """The client or the daemon has ended the request."""

    code = "canceled"


class Unimplemented(CarrelError):
    """The daemon does not do this."""

    code = "unimplemented"


class OutOfRange(CarrelError):
    """A position is beyond the end."""

    code = "out_of_range"


class DataLoss(CarrelError):
    """The record or stored data are damaged."""

    code = "data_loss"


class Internal(CarrelError):
    """The daemon is at fault."""

    code = "internal"


class CommandFailed(CarrelError):
    """A command ended with another exit code than 0. Only Result.check raises it."""

    code = "command_failed"

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


_BY_CODE: dict[str, type[CarrelError]] = {
    c.code: c
    for c in (
        InvalidArgument, NotFound, AlreadyExists, PermissionDenied, Unauthenticated, FailedPrecondition, ResourceExhausted,
        Unavailable, Aborted, DeadlineExceeded, Canceled, Unimplemented, OutOfRange, DataLoss, Internal,
    )
}  # fmt: skip

# As the daemon writes it where nobody waits for the answer.
_APPROVAL = re.compile(r"a person has to approve it: approval (ap-[^,\s]+)")


def error_of(code: str, message: str, request: str) -> CarrelError:
    """The error of an answer."""
    if code in ("failed_precondition", "unavailable"):
        found = _APPROVAL.search(message)
        if found:
            return NeedsApproval(message, found.group(1), request=request)
    e = _BY_CODE.get(code, CarrelError)(message, request=request)
    if type(e) is CarrelError:
        e.code = code
    return e
