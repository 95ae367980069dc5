"""Sidecars as bad as can be: what each does to a request, and the word that the harvester's library has for it."""

import socket
import struct
import threading
from typing import Final

from shim_stage import Behaviour, reply, right


def sends(answer: bytes) -> Behaviour:
    def behave(taken: socket.socket, _body: bytes) -> None:
        taken.sendall(answer)

    return behave


def endless(taken: socket.socket, _body: bytes) -> None:
    taken.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        taken.sendall(b"X-More: and more\r\n" * 100)


def half(taken: socket.socket, body: bytes) -> None:
    taken.sendall(reply(right(body))[:-4])
    raise EOFError


def resets(taken: socket.socket, _body: bytes) -> None:
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    taken.close()
    raise EOFError


def leaves(_taken: socket.socket, _body: bytes) -> None:
    raise EOFError


def silent(taken: socket.socket, _body: bytes) -> None:
    taken.recv(1)


def trickles(taken: socket.socket, _body: bytes) -> None:
    pause = threading.Event()
    for byte in reply(bytes(256), 200, "X-Long: " + "x" * 4000):
        taken.sendall(bytes([byte]))
        pause.wait(0.02)


_HEAD = b"HTTP/1.1 200 OK\r\n"
_GARBLED = {
    "noise": b"\xff" * 9000,
    "noise with an end": b"\xff\xfe\r\n\r\n",
    "an empty head": b"\r\n\r\n",
    "zeros": bytes(64) + b"\r\n\r\n",
    "a zero in the head": _HEAD + b"X: \0\r\nContent-Length: 8\r\n\r\n" + bytes(8),
    "http/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 8\r\n\r\n" + bytes(8),
    "a status of letters": b"HTTP/1.1 2x0 OK\r\nContent-Length: 8\r\n\r\n" + bytes(8),
    "a status of four digits": b"HTTP/1.1 2000 OK\r\nContent-Length: 8\r\n\r\n" + bytes(8),
    "a status that runs on": b"HTTP/1.1 200OK\r\nContent-Length: 8\r\n\r\n" + bytes(8),
    "continue": b"HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n",
    "no length": _HEAD + b"\r\n" + bytes(8),
    "chunks": _HEAD + b"Content-Length: 8\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n" + bytes(8),
    "two lengths": _HEAD + b"Content-Length: 8\r\nContent-Length: 8\r\n\r\n" + bytes(8),
    "an empty length": _HEAD + b"Content-Length: \r\n\r\n" + bytes(8),
    "a negative length": _HEAD + b"Content-Length: -8\r\n\r\n" + bytes(8),
    "a signed length": _HEAD + b"Content-Length: +8\r\n\r\n" + bytes(8),
    "a length and more": _HEAD + b"Content-Length: 8, 8\r\n\r\n" + bytes(8),
    "a huge length": _HEAD + b"Content-Length: 999999999\r\n\r\n" + bytes(8),
    "a length beyond any number": _HEAD + b"Content-Length: 18446744073709551624\r\n\r\n" + bytes(8),
    "a line without a colon": _HEAD + b"Content-Length 8\r\n\r\n" + bytes(8),
    "a line without a name": _HEAD + b": 8\r\nContent-Length: 8\r\n\r\n" + bytes(8),
    "one byte less": reply(bytes(7)),
    "one byte more": reply(bytes(9)),
    "nothing": reply(b""),
    "a proof for a quality": reply(bytes(256)),
    "words": reply(b'{"x":["7","9"]}'),
    "more behind the answer": reply(bytes(8)) + b"x",
}  # fmt: skip
_REFUSED = {
    "204": b"HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n",
    "a redirect": reply(b"", 307, "Location: http://example.com/"),
    "not found": reply(b"{}", 404),
    "busy": reply(b"{}", 429, "Retry-After: 1"),
    "no proof with another status": reply(b'"no_proof"', 500),
    "a long problem": reply(b"x" * 100_000, 502),
    "a problem of a terabyte": b"HTTP/1.1 502 Bad\r\nContent-Length: 999999999\r\n\r\nx",
}
HOSTILE: Final[dict[str, tuple[Behaviour, str]]] = {
    **{name: (sends(answer), "garbled") for name, answer in _GARBLED.items()},
    **{name: (sends(answer), "refused") for name, answer in _REFUSED.items()},
    "an endless head": (endless, "garbled"),
    "half an answer": (half, "closed"),
    "an end": (leaves, "closed"),
    "a reset": (resets, "closed"),
    "silence": (silent, "silent"),
    "a trickle": (trickles, "silent"),
    "a head and silence": (sends(_HEAD), "silent"),
    "all but one byte": (sends(reply(bytes(8))[:-1]), "silent"),
}
"""What a sidecar may do to a quality request."""
