"""The name by which a model's server knows the model, where it is not the one that clients say.

Most servers are started with the right name or take any. One that refuses a name with 404 is asked once which models it
has; if it has exactly one, that is the one meant, and requests go there under its own name from then on.
"""

import json
from typing import Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from gpupool.gateway.faults import GatewayError
from gpupool.gateway.naming import model_name
from gpupool.gateway.reading import Call
from gpupool.gateway.routing import Upstream
from gpupool.gateway.upstreams import ask, read_whole

LIST_SECONDS: Final = 5.0
_MAX_LIST_BYTES: Final = 1024 * 1024


async def ask_by_its_name(
    session: aiohttp.ClientSession, upstream: Upstream, target: str, headers: CIMultiDict[str], call: Call
) -> aiohttp.ClientResponse:
    """Like `ask`, under the name that the upstream knows the model by."""
    reply = await ask(session, upstream, target, headers, _named(call, upstream.own_name))
    if reply.status != 404 or upstream.names_asked:
        return reply
    upstream.names_asked = True
    name = await only_model(session, upstream)
    if name is None or name == call.model:
        return reply
    reply.close()
    upstream.own_name = name
    return await ask(session, upstream, target, headers, _named(call, name))


def _named(call: Call, name: str | None) -> bytes:
    return call.body if name is None else model_name(name).put_into(call.body)


async def only_model(session: aiohttp.ClientSession, upstream: Upstream) -> str | None:
    """Return the one model that an upstream lists; None when it lists none, several, or nothing that can be read."""
    timeout = aiohttp.ClientTimeout(total=LIST_SECONDS)
    try:
        async with session.get(URL(f"{upstream.base_url}/v1/models"), timeout=timeout) as reply:
            value = json.loads(await read_whole(reply, _MAX_LIST_BYTES)) if reply.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, GatewayError, ValueError, RecursionError):
        return None
    listed = value.get("data") if isinstance(value, dict) else None
    names = [item.get("id") for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return names[0] if len(names) == 1 and isinstance(names[0], str) else None
