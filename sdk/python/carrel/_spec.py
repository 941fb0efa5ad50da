"""What commands are given."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import messages as m
from ._result import milliseconds
from .errors import InvalidArgument


def command_of(
    argv: Sequence[str], cwd: str, env: Mapping[str, str] | None, timeout: float | None, grace: float | None, source: str, thread: str,
    approval_wait: float | None,
) -> m.Command:  # fmt: skip
    if isinstance(argv, (str, bytes)):
        raise InvalidArgument('cannot run a text: argv is a list of words; write ["sh", "-c", text] for a line of shell')
    wait = 0 if approval_wait is None else -1 if approval_wait <= 0 else milliseconds(approval_wait)
    return m.Command(
        argv=list(argv), cwd=cwd, env=dict(env or {}), timeout_ms=milliseconds(timeout), grace_ms=milliseconds(grace), source=source,
        thread=thread, approval_wait_ms=wait,
    )  # fmt: skip
