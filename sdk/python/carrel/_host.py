"""Which daemon a client uses, and with which token."""
from __future__ import annotations

import hashlib
import os
import re
import ssl
import stat
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from .errors import FailedPrecondition, InvalidArgument, Unauthenticated

DEFAULT_HOST = "unix:///run/carrel/carrel.sock"
_TOKEN = re.compile(r"crl_[0-9a-f]{12}_[A-Za-z0-9_-]{43}\Z")


@dataclass(frozen=True)
class Host:
    """A daemon. socket is the path of a Unix socket; if it is empty, name and port are those of a server of TLS."""

    socket: str = ""
    name: str = ""
    port: int = 0
    fingerprint: str = ""
    ca_file: str = ""
    token: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"unix://{self.socket}" if self.socket else f"https://{self.authority}"

    @property
    def authority(self) -> str:
        if self.socket:
            return "carrel"
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"

    def context(self) -> ssl.SSLContext:
        """TLS 1.3. With a fingerprint the key alone counts, which check looks at."""
        try:
            c = ssl.create_default_context(cafile=self.ca_file or None)
        except (OSError, ssl.SSLError) as e:
            raise InvalidArgument(
                f"cannot use the certificate authorities in {self.ca_file}: {e}; CARREL_CA_FILE or ca_file names a file in PEM"
            ) from None
        c.minimum_version = ssl.TLSVersion.TLSv1_3
        if self.fingerprint:
            c.check_hostname = False
            c.verify_mode = ssl.CERT_NONE
        return c

    def check(self, certificate: bytes | None) -> None:
        """Raises Unauthenticated if the server's key is not the one with the fingerprint."""
        if not self.fingerprint:
            return
        got = fingerprint_of(certificate or b"")
        if got != self.fingerprint:
            raise Unauthenticated(
                f"cannot trust carrel at {self}: its key has the fingerprint {got}, and {self.fingerprint} was expected; do not give it a "
                'token; if the daemon\'s key was replaced, "carrel version" on its host shows the new one'
            )


def host_from(
    host: str | None, token: str | None, token_file: str | None, fingerprint: str | None, ca_file: str | None
) -> Host:
    """As sdk/go: only where host is not given are the others read from the environment."""
    if not host:
        host = os.environ.get("CARREL_HOST", "")
        if not token and not token_file:
            token, token_file = os.environ.get("CARREL_TOKEN"), os.environ.get("CARREL_TOKEN_FILE")
        fingerprint = fingerprint or os.environ.get("CARREL_FINGERPRINT")
        ca_file = ca_file or os.environ.get("CARREL_CA_FILE")
    host = host or DEFAULT_HOST
    text = token or (_read_token(token_file) if token_file else "")
    if text and not _TOKEN.match(text):
        raise InvalidArgument("cannot use the token: it does not have the form of one; see that all of its 60 characters are there")
    if host.startswith("unix:///"):
        return Host(socket=host[len("unix://") :], token=text)
    try:
        u = urlsplit(host)
        port, name = u.port, u.hostname
    except ValueError:
        port, name = None, None
    if not name or not port or u.scheme != "https" or u.username or u.path.strip("/") or u.query or u.fragment:
        raise InvalidArgument(
            f"cannot use {host!r} as the host: it must be unix:// and the absolute path of the daemon's socket, as in {DEFAULT_HOST}, "
            "or https://HOST:PORT"
        )
    fingerprint = fingerprint or ""
    if fingerprint and not re.fullmatch(r"sha256:[0-9a-f]{64}", fingerprint):
        raise InvalidArgument(
            f"cannot use the fingerprint {fingerprint!r}: it must be sha256: and 64 hexadecimal digits, as "
            '"carrel token create" prints it'
        )
    return Host(name=name, port=port, fingerprint=fingerprint, ca_file=ca_file or "", token=text)


def _read_token(path: str) -> str:
    try:
        with open(path, "rb") as f:
            st = os.fstat(f.fileno())
            if stat.S_ISREG(st.st_mode) and st.st_mode & 0o077:
                raise FailedPrecondition(
                    f"cannot use the token in {path}: others may read the file, which has mode {stat.S_IMODE(st.st_mode):o}; chmod 600 it, "
                    "and revoke the token if somebody read it"
                )
            text = f.read(4096).decode("utf-8", "replace").strip()
    except OSError as e:
        raise InvalidArgument(f"cannot read the token: {e}; CARREL_TOKEN_FILE or token_file names the file") from None
    if not text:
        raise InvalidArgument(
            f"cannot use the token in {path}: the file is empty; write a token there, as \"carrel token create\" prints it"
        )
    return text


def fingerprint_of(certificate: bytes) -> str:
    """sha256: and the SHA-256 of the SubjectPublicKeyInfo of a certificate in DER (RFC 5280): the seventh field of its first
    part, or the sixth where the version is left out."""
    try:
        _, start, _ = _der(certificate, 0)
        _, at, end = _der(certificate, start)
        fields = []
        while at < end:
            tag, _, after = _der(certificate, at)
            fields.append((tag, at, after))
            at = after
        skip = 1 if fields[0][0] == 0xA0 else 0
        _, begin, after = fields[5 + skip]
    except (IndexError, ValueError):
        return "sha256:"
    return "sha256:" + hashlib.sha256(certificate[begin:after]).hexdigest()


def _der(b: bytes, at: int) -> tuple[int, int, int]:
    """The tag of the element at a place, and where its contents begin and end."""
    tag, length, start = b[at], b[at + 1], at + 2
    if length & 0x80:
        n = length & 0x7F
        length, start = int.from_bytes(b[start : start + n], "big"), start + n
    if start + length > len(b):
        raise ValueError("cut off")
    return tag, start, start + length
