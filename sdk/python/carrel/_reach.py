"""What an error of a connection means to a person."""
from __future__ import annotations

import os
import ssl
import stat

from ._host import Host
from .errors import CarrelError, PermissionDenied, Unauthenticated, Unavailable


def unreachable(host: Host, e: BaseException) -> CarrelError:
    kind: type[CarrelError] = Unavailable
    if isinstance(e, FileNotFoundError):
        why = 'there is no such socket; start carrel with "sudo carrel up", or name another daemon with host or CARREL_HOST'
    elif isinstance(e, ConnectionRefusedError) and host.socket:
        why = 'nothing listens on it, so the daemon has ended; start it with "sudo carrel up"'
    elif isinstance(e, ConnectionRefusedError):
        why = 'nothing listens there; see that the daemon runs and that its "listen" is set'
    elif isinstance(e, PermissionError) and starting(host.socket):
        why = "the daemon is starting; try again"
    elif isinstance(e, PermissionError):
        kind, why = PermissionDenied, "this user may not use it; ask an administrator to be added to its group, or use sudo"
    elif isinstance(e, ssl.SSLCertVerificationError):
        kind = Unauthenticated
        why = (
            f"its certificate is not trusted here: {e.verify_message}; give the fingerprint of its key with fingerprint or "
            'CARREL_FINGERPRINT, as "carrel token create" prints it, or its authority with ca_file or CARREL_CA_FILE'
        )
    elif isinstance(e, TimeoutError) or not str(e):
        why = "it does not answer in time; see that the daemon runs, and try again"
    else:
        why = f"{e}; see that the daemon runs, and try again"
    return kind(f"cannot reach carrel at {host}: {why}")


def starting(socket: str | None) -> bool:
    """Whether a daemon has made its socket and not yet opened it to those who may use it."""
    try:
        return bool(socket) and stat.S_IMODE(os.lstat(socket or "").st_mode) == 0
    except OSError:
        return False
