"""The farm's side of recompute: ask a list of servers or proxies, and never lose a look-up while one of them is good.

`Client` blocks, `AsyncClient` awaits; both read the ``CHIAPOS_RECOMPUTE_*`` variables that harvesters have. Nothing
here needs more of the operating system than Windows has.
"""

from gpupool.recompute.client.asynchronous import AsyncClient
from gpupool.recompute.client.hosts import Host
from gpupool.recompute.client.options import ClientOptions
from gpupool.recompute.client.questions import Answer
from gpupool.recompute.client.synchronous import Client

__all__ = ["Answer", "AsyncClient", "Client", "ClientOptions", "Host"]
