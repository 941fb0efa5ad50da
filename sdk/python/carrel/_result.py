"""What commands give back."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .errors import CommandFailed
from .messages import Status

# What on_stdout and on_stderr are.
OnOutput = Callable[[bytes], None]

# How much a Result keeps of each output unless told otherwise, in bytes.
MAX_OUTPUT = 64 << 20


@dataclass(frozen=True)
class Result:
    """A command that ran to its end. One that fails is no error: look at exit_code, or call check.

    stdout and stderr have at most max_output bytes; stdout_lost and stderr_lost count what came beyond.
    """

    command_id: str
    status: Status
    stdout: bytes
    stderr: bytes
    stdout_lost: int = 0
    stderr_lost: int = 0

    @property
    def exit_code(self) -> int:
        """The exit code, or 128 + the signal that ended it."""
        return self.status.code

    @property
    def ok(self) -> bool:
        return self.status.code == 0

    @property
    def text(self) -> str:
        """stdout as text; bytes that are no UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")

    def check(self) -> Result:
        """The result itself, or CommandFailed if the exit code is not 0."""
        if not self.ok:
            last = self.stderr[-1024:].decode("utf-8", "replace").strip()
            why = "it ran out of time" if self.status.timed_out else f"its exit code is {self.exit_code}"
            raise CommandFailed(f"command {self.command_id} failed: {why}" + (f": {last}" if last else ""), self)
        return self


@dataclass(frozen=True)
class Output:
    """A piece of what a command has written."""

    stream: Literal["stdout", "stderr"]
    data: bytes


class Collected:
    """Bytes up to a bound; the rest is counted."""

    def __init__(self, most: int) -> None:
        self._most, self._have, self._pieces = most, 0, list[bytes]()
        self.lost = 0

    def add(self, data: bytes) -> None:
        keep = data[: self._most - self._have]
        if keep:
            self._pieces.append(keep)
            self._have += len(keep)
        self.lost += len(data) - len(keep)

    def all(self) -> bytes:
        return b"".join(self._pieces)


def milliseconds(seconds: float | None) -> int:
    """Rounded up, so that a short time does not become none."""
    return 0 if not seconds else max(1, -int(-seconds * 1000 // 1))
