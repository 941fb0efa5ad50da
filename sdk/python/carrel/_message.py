"""How messages become JSON and are read from it: that of protocol buffers, as Connect sends it."""
from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

_classes: dict[str, type[Message]] = {}
_M = TypeVar("_M", bound="Message")


class Field(NamedTuple):
    """A field of a message: its name here and in JSON, how its value is converted, and how often it is there."""

    name: str
    json: str
    kind: str  # string, bytes, bool, double, int32, int64 or message
    shape: str  # one, opt (may be missing), many or map
    of: str | None


class Message:
    """A message of carrel.v1. Fields that are zero are not sent; fields that this release does not know are passed over."""

    _FIELDS: ClassVar[tuple[Field, ...]] = ()

    def __init_subclass__(cls) -> None:
        _classes[cls.__name__] = cls

    def to_json(self) -> dict[str, Any]:
        """The message as an object of JSON."""
        out: dict[str, Any] = {}
        for f in self._FIELDS:
            v = getattr(self, f.name)
            if f.shape == "map":
                if v:
                    out[f.json] = dict(v)
            elif f.shape == "many":
                if isinstance(v, (str, bytes)):
                    raise TypeError(f"cannot use {f.name}: it is a list, and {type(v).__name__} was given; put it into a list")
                if v:
                    out[f.json] = [_value_to(f, x) for x in v]
            elif f.shape == "opt":
                if v is not None:
                    out[f.json] = _value_to(f, v)
            elif v:
                out[f.json] = _value_to(f, v)
        return out

    @classmethod
    def from_json(cls: type[_M], j: dict[str, Any]) -> _M:
        """The message that an object of JSON is."""
        known: dict[str, Any] = {}
        for f in cls._FIELDS:
            v = j.get(f.json)
            if v is None:
                continue
            if f.shape == "map":
                known[f.name] = dict(v)
            elif f.shape == "many":
                known[f.name] = [_value_from(f, x) for x in v]
            else:
                known[f.name] = _value_from(f, v)
        return cls(**known)


def _value_to(f: Field, v: Any) -> Any:
    if f.kind == "bytes":
        return base64.b64encode(v).decode("ascii")
    if f.kind == "int64":
        return str(int(v))
    if f.kind == "message":
        return cast(Message, v).to_json()
    return v


def _value_from(f: Field, v: Any) -> Any:
    if f.kind == "bytes":
        return base64.b64decode(v)
    if f.kind == "int64":
        return int(v)
    if f.kind == "double":
        return float(v)
    if f.kind == "message":
        assert f.of is not None
        return _classes[f.of].from_json(v)
    return v


Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True)
class Method(Generic[Request, Response]):
    """A method of carrel.v1. streams says which sides send streams: unary, server, client or both. One that is repeatable changes
    nothing."""

    path: str
    request: type[Request]
    response: type[Response]
    streams: str
    repeatable: bool
