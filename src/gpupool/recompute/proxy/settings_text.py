"""Settings as JSON and back, for a start in two steps: one program reads the options, another one serves."""

import json
import types
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

from gpupool.recompute.proxy.settings import ProxySettings


def to_text(settings: ProxySettings) -> str:
    """Return everything that ``settings`` say; it may hold a secret."""
    return json.dumps(asdict(settings), default=_plain)


def from_text(text: str) -> ProxySettings:
    """Return what `to_text` was given."""
    made: ProxySettings = _made(ProxySettings, json.loads(text))
    return made


def _plain(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no setting")


def _made(kind: Any, value: Any) -> Any:
    """Return ``value`` as the ``kind`` that a field is declared with."""
    if get_origin(kind) is types.UnionType:
        kind = get_args(kind)[0]
    if value is None:
        return None
    if is_dataclass(kind):
        hints, make = get_type_hints(kind), cast("Any", kind)
        return make(**{name: _made(hints[name], part) for name, part in value.items()})
    if kind is bytes:
        return bytes.fromhex(value)
    return tuple(value) if get_origin(kind) is tuple else kind(value)
