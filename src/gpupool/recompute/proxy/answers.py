"""Answers that the proxy writes itself, as bytes of HTTP/1.1."""

import json
from email.utils import formatdate
from typing import Final

from gpupool.recompute.tls_words import ASK_OVER_TLS

PHRASES: Final = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 408: "Request Timeout",
    413: "Content Too Large", 422: "Unprocessable Content", 429: "Too Many Requests", 500: "Internal Server Error",
    502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout", 508: "Loop Detected",
}  # fmt: skip
REMEDIES: Final = {
    "invalid_input": "Correct the request and send it again.",
    "too_large": "Send less; the limit is in the detail.",
    "deadline": "Allow more time, add servers, or see /v1/nodes for what is wrong with them.",
    "busy": "Try again after the time in Retry-After, or add servers.",
    "unauthorized": "Bring a token of the proxy's list as Authorization: Bearer TOKEN (--token-file of our client).",
    "tls_required": ASK_OVER_TLS,
    "no_certificate": "Show a certificate of the proxy's --client-ca (--tls-cert and --tls-key of our client).",
    "locked_out": "Give the proxy what they want: token-file=, cert= and key= of the node, or --node-token-file.",
    "wrong_answer": "See /v1/nodes of the proxy, and take servers that answer wrong out of use.",
    "unavailable": "Add a server with -n HOST[:PORT]; see /v1/nodes for those there are.",
    "loop": "Take the proxy out of its own list of servers, or out of that of the proxies behind it.",
    "not_found": "See /v1/server, /v1/nodes, /metrics, /healthz and /readyz.",
    "method": "Use the method named in the documentation of this path.",
}


def response(
    status: int,
    body: bytes,
    content_type: str = "application/json",
    headers: tuple[tuple[str, str], ...] = (),
) -> bytes:
    """Return a whole answer."""
    extra = "".join(f"{name}: {value}\r\n" for name, value in headers)
    # The time is what `gpupool recompute doctor` compares clocks by.
    head = (
        f"HTTP/1.1 {status} {PHRASES.get(status, 'Status')}\r\nContent-Type: {content_type}\r\n"
        f"Date: {formatdate(usegmt=True)}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    )
    return head.encode("latin-1") + body


def problem(status: int, code: str, detail: str, request_id: str, challenge: str = "") -> bytes:
    """Return an error as problem+json (RFC 9457), with a remedy; ``challenge`` goes into ``WWW-Authenticate``."""
    body = {
        "type": "about:blank",
        "title": PHRASES.get(status, "Error"),
        "status": status,
        "code": code,
        "detail": detail,
        "remedy": REMEDIES.get(code, "See the log of the proxy."),
        "request_id": request_id,
    }
    headers = [("X-Request-Id", request_id)]
    if status in {429, 503}:
        headers.append(("Retry-After", "1"))
    if challenge:
        headers.append(("WWW-Authenticate", challenge))
    return response(status, json.dumps(body).encode(), "application/problem+json", tuple(headers))
