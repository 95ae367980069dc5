"""The command ``chia_recompute_proxy``: our proxy under the name, flags and defaults of the original.

It listens on every address, as the original does; where the original is installed, this starts that one.
"""

import argparse
import sys

from gpupool.cli.original_programs import yield_to_original
from gpupool.cli.recompute_proxy_process import fail, leave_out, serve
from gpupool.core.errors import GpupoolError
from gpupool.core.standard_streams import open_missing

PORT_HELP = "Port to listen on [11989]; 0 takes a free one."
TAKEOVER_HELP = (
    "Replace the proxy that runs at this address, which hands its socket and clients over: no lookup is lost."
)
NODE_HELP = "A server to forward to; port 11989 where none is given. May be repeated. In quotes: options as in that file."


def main() -> None:
    """Be ``chia_recompute_proxy``: the same flags, the same lines, exit code 2 where no server is named."""
    open_missing()
    yield_to_original("chia_recompute_proxy", sys.argv[1:], "gpupool recompute proxy")
    given = _parser().parse_args()
    leave_out()
    from gpupool.recompute.proxy.settings import ProxySettings

    try:
        settings = ProxySettings(
            host=given.host,
            port=given.port,
            nodes=tuple(given.node),
            takeover=given.takeover,
            keep_state=True,
        )
    except GpupoolError as error:
        fail(error)
    serve(settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="chia_recompute_proxy",
        description="Forward lookups of harvesters to recompute servers. See also: gpupool recompute proxy --help",
    )
    parser.add_argument("-p", "--port", type=int, default=11989, help=PORT_HELP)
    parser.add_argument("--host", default="0.0.0.0", help="Address to listen on [0.0.0.0].")  # noqa: S104
    parser.add_argument("-n", "--node", action="append", default=[], metavar="HOST[:PORT]", help=NODE_HELP)
    parser.add_argument("--takeover", action="store_true", help=TAKEOVER_HELP)
    return parser
