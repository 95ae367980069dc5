"""Which headers pass through, in each direction.

What belongs to one hop stays on it. A client's credentials are for the gateway and go no further. An upstream speaks for
a model, not for this address, so it sets no cookies and opens no cross-origin access.
"""

import re
from collections.abc import Iterable
from typing import Final

from aiohttp import hdrs
from multidict import CIMultiDict, CIMultiDictProxy

from gpupool.core.ids import new_id

REQUEST_ID: Final = "X-Request-Id"
_REQUEST_ID_FORM: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_ONE_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# The body is sent on in plain form with its own length, whatever coding it came in.
_OF_THE_BODY: Final = frozenset({"content-length", "content-encoding"})
_KEPT_FROM_UPSTREAM: Final = (
    _ONE_HOP
    | _OF_THE_BODY
    | {"host", "accept-encoding", "expect", "authorization", "cookie", "x-api-key", "api-key", "x-request-id"}
)
_KEPT_FROM_CLIENT: Final = (
    _ONE_HOP
    | _OF_THE_BODY
    | {"server", "date", "set-cookie", "x-request-id", "alt-svc", "strict-transport-security"}
)


def request_id_of(headers: CIMultiDictProxy[str]) -> str:
    """Return the client's request id, or a new one when it gave none that is fit for a log."""
    given = headers.get(REQUEST_ID, "")
    return given if _REQUEST_ID_FORM.fullmatch(given) else new_id("req")


def to_upstream(headers: CIMultiDictProxy[str], request_id: str) -> CIMultiDict[str]:
    """Return a client's headers as an upstream gets them."""
    passed = _without(headers, _KEPT_FROM_UPSTREAM)
    passed[REQUEST_ID] = request_id
    passed[hdrs.ACCEPT_ENCODING] = "identity"
    passed.setdefault(hdrs.CONTENT_TYPE, "application/json")
    return passed


def to_client(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Return an upstream's headers as the client gets them."""
    passed = _without(headers, _KEPT_FROM_CLIENT)
    for name in [name for name in passed if name.lower().startswith("access-control-")]:
        passed.popall(name, None)
    return passed


def _without(headers: CIMultiDictProxy[str], kept: Iterable[str]) -> CIMultiDict[str]:
    named = {
        name.strip().lower() for value in headers.getall(hdrs.CONNECTION, ()) for name in value.split(",")
    }
    dropped = named.union(kept) if named else kept
    # Values beyond ASCII have no agreed meaning, and some of them cannot be written again.
    return CIMultiDict(
        (name, value) for name, value in headers.items() if name.lower() not in dropped and value.isascii()
    )
