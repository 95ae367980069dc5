"""The least that taking a signed report can cost: uvicorn, and a handler that checks the signature and nothing else."""

import socket

import uvicorn
from benchmarks.fleet_parts.agents import REPORTS, key_of

from gpupool.core.keys import (
    HEADER_NONCE,
    HEADER_SIGNATURE,
    HEADER_TIME,
    canonical_request,
    verify_signature,
)

_ANSWER = b'{"session_known":true}'
_PUBLIC = key_of(0).public_text


async def app(scope, receive, send):  # type: ignore[no-untyped-def]
    """Take one report of agent 0."""
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            break
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    signed = canonical_request(
        "POST", REPORTS, body, headers[HEADER_TIME.lower()], headers[HEADER_NONCE.lower()]
    )
    verify_signature(_PUBLIC, headers[HEADER_SIGNATURE.lower()], signed)
    start = [(b"content-length", b"%d" % len(_ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": start})
    await send({"type": "http.response.body", "body": _ANSWER})


def main() -> None:
    """Serve on a free port, which is printed."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, lifespan="off", log_level="error", access_log=False, ws="none")
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
