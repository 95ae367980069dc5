"""Which of the proxy's modules have a compiled form: those that every answer passes through.

Compiled by mypyc (`scripts/compile_proxy.py`), they take about half of the time that they take interpreted. See
docs/design/proxy.md.
"""

import sys
from importlib.machinery import ExtensionFileLoader
from typing import Final

from gpupool.core.compiled import prefer_compiled

GROUP: Final = "gpupool_proxy"
PACKAGES: Final = ("gpupool.balancing", "gpupool.core", "gpupool.recompute", "gpupool.recompute.proxy")
"""Where the modules and whatever of ours they import lie."""
MODULES: Final = tuple(
    f"gpupool.balancing.{name}"
    for name in ("budget", "health", "histogram", "learned_limit", "node", "policy", "pool", "speed", "terms")
) + tuple(
    f"gpupool.recompute.proxy.{name}"
    for name in (
        "dispatching",
        "exchanges",
        "http_clients",
        "http_exchange",
        "http_links",
        "links",
        "nodes",
        "requestlog",
    )
)


def in_use() -> bool:
    """Tell whether this process runs the compiled form."""
    loaded = sys.modules.get(MODULES[-1])
    return loaded is not None and isinstance(loaded.__loader__, ExtensionFileLoader)


def prefer() -> str | None:
    """Take the compiled form where there is one; return why there is none. Called before anything of the proxy is loaded."""
    return prefer_compiled(GROUP, MODULES, PACKAGES)
