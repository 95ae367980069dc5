"""Chia's peer protocol, as far as a solver needs it: messages as bytes and back. Pure.

Numbers are big-endian, texts and byte strings have a length of four bytes in front, an optional value a byte that says
whether it is there. What is too long, too short or followed by more is refused, so nothing here allocates more than it
was given.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

_T = TypeVar("_T")
MESSAGE_LIMIT: Final = 4096
"""Bytes of what a farmer sends; a question has 170."""
_TEXT_LIMIT: Final = 256
_CAPABILITIES_LIMIT: Final = 64
_PROOF_LIMIT: Final = 2048
"""Bytes of a whole proof; of the largest plot, k=32, it has 512."""


class NodeType(IntEnum):
    """Who is at the other end."""

    FARMER = 3
    SOLVER = 8


class Kind(IntEnum):
    """The messages between farmer and solver."""

    HANDSHAKE = 1
    SOLVE = 109
    SOLUTION = 108
    ERROR = 255


CAPABILITIES: Final = ((1, "1"), (2, "1"), (3, "1"))
"""What a solver of release 2.7 says it can: the protocol, newer headers, the second version of rate limits."""


class WireError(Exception):
    """The bytes are no message of this protocol."""


@dataclass(frozen=True, slots=True)
class Message:
    """What travels in one websocket message."""

    kind: int
    number: int | None
    """Names a request, for an answer to refer to; farmers leave it out."""
    body: bytes

    def encode(self) -> bytes:
        """Return the bytes."""
        number = b"\0" if self.number is None else struct.pack(">BH", 1, self.number)
        return struct.pack(">B", self.kind) + number + _counted(self.body)

    @classmethod
    def decode(cls, data: bytes) -> "Message":
        """Return the message; raises WireError."""
        reader = _Reader(data)
        kind = reader.number(1)
        number = reader.number(2) if reader.flag() else None
        return cls(kind, number, reader.last(reader.counted(MESSAGE_LIMIT)))


@dataclass(frozen=True, slots=True)
class Handshake:
    """Who somebody is; the first message each way."""

    network: str
    protocol: str
    software: str
    port: int
    """Where it listens; 0: nowhere."""
    node_type: int
    capabilities: tuple[tuple[int, str], ...] = CAPABILITIES

    def encode(self) -> bytes:
        """Return the bytes."""
        parts = [_counted(text.encode()) for text in (self.network, self.protocol, self.software)]
        parts.append(struct.pack(">HBI", self.port, self.node_type, len(self.capabilities)))
        parts += [struct.pack(">H", number) + _counted(text.encode()) for number, text in self.capabilities]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> "Handshake":
        """Return the handshake; raises WireError."""
        reader = _Reader(data)
        network, protocol, software = reader.text(), reader.text(), reader.text()
        port, node_type, count = reader.number(2), reader.number(1), reader.number(4)
        if count > _CAPABILITIES_LIMIT:
            raise WireError(f"more than {_CAPABILITIES_LIMIT} capabilities")
        capabilities = tuple((reader.number(2), reader.text()) for _ in range(count))
        return reader.last(cls(network, protocol, software, port, node_type, capabilities))


@dataclass(frozen=True, slots=True)
class Solve:
    """A farmer's question."""

    partial_proof: bytes
    plot_id: bytes
    strength: int
    k: int

    def encode(self) -> bytes:
        """Return the bytes."""
        return self.partial_proof + self.plot_id + struct.pack(">BB", self.strength, self.k)

    @classmethod
    def decode(cls, data: bytes) -> "Solve":
        """Return the question; raises WireError."""
        reader = _Reader(data)
        return reader.last(cls(reader.take(128), reader.take(32), reader.number(1), reader.number(1)))


@dataclass(frozen=True, slots=True)
class Solution:
    """The answer to it, which names it by the partial proof."""

    partial_proof: bytes
    proof: bytes

    def encode(self) -> bytes:
        """Return the bytes."""
        return self.partial_proof + _counted(self.proof)

    @classmethod
    def decode(cls, data: bytes) -> "Solution":
        """Return the answer; raises WireError."""
        reader = _Reader(data)
        return reader.last(cls(reader.take(128), reader.counted(_PROOF_LIMIT)))


def _counted(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise WireError("it ends too early")
        taken, self._at = self._data[self._at : end], end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def flag(self) -> bool:
        value = self.number(1)
        if value > 1:
            raise WireError(f"{value} is neither there nor absent")
        return bool(value)

    def counted(self, most: int) -> bytes:
        size = self.number(4)
        if size > most:
            raise WireError(f"{size} bytes are announced, {most} are allowed")
        return self.take(size)

    def text(self) -> str:
        try:
            return self.counted(_TEXT_LIMIT).decode()
        except UnicodeDecodeError as error:
            raise WireError("a text is not UTF-8") from error

    def last(self, value: _T) -> _T:
        if self._at != len(self._data):
            raise WireError(f"{len(self._data) - self._at} bytes follow")
        return value
