"""Serve one GGUF model on the CPU with llama.cpp, as the whole life of this process.

A chute's command runs it: ``python -m gpupool.engines.llamacpp --model smollm2 --port {port} --alias smollm2-135m``.
It speaks the OpenAI API, answers ``/health`` once the model is loaded, and ends with status 0 on SIGTERM or SIGINT.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from gpupool.core.errors import GpupoolError
from gpupool.core.logging import set_up_logging
from gpupool.engines.llama_server import LlamaOptions, LlamaServer
from gpupool.engines.weights import PACKAGED_MODELS, find_weights

_STOP_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})


def parse_options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line; exits with status 2 and a message where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m gpupool.engines.llamacpp",
        description="Serve one GGUF model on the CPU through llama.cpp's OpenAI-compatible server.",
    )
    known = ", ".join(sorted(PACKAGED_MODELS))
    parser.add_argument("--model", required=True, help=f"{known}, or the path of a .gguf file")
    parser.add_argument("--alias", help="model name that clients see (default: the value of --model)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_between(0, 65535), default=0, help="0 draws a free one (default)")
    parser.add_argument("--threads", type=_between(1, os.cpu_count() or 1), default=1, help="default: 1")
    parser.add_argument("--parallel", type=_between(1, 64), default=1, help="requests at once (default: 1)")
    parser.add_argument("--context", type=_between(256, 131072), default=2048, help="tokens (default: 2048)")
    return parser.parse_args(argv)


def _between(low: int, high: int) -> Callable[[str], int]:
    """Return an argparse type: an integer in ``low..high``."""

    def number(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not between {low} and {high}")
        return value

    return number


def serve(options: argparse.Namespace) -> None:
    """Serve until a stop signal arrives; raise GpupoolError where the model cannot be served."""
    log = structlog.get_logger(__name__)
    weights = find_weights(options.model)
    # Blocked before the engine starts its threads, so that they inherit it and only `sigwait` below sees a stop.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    server = LlamaServer(
        LlamaOptions(
            weights=weights,
            alias=options.alias or options.model,
            host=options.host,
            port=options.port,
            threads=options.threads,
            parallel=options.parallel,
            context=options.context,
        )
    )
    log.info(
        "serving",
        address=server.address,
        model=options.alias or options.model,
        weights=str(weights),
        computes_on="CPU only",
        engine_devices=list(server.devices),
        threads=options.threads,
    )
    received = signal.sigwait(_STOP_SIGNALS)
    log.info("stopping", signal=signal.Signals(received).name)
    server.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the launcher and return its exit status."""
    options = parse_options(argv)
    set_up_logging("engine")
    try:
        serve(options)
    except GpupoolError as error:
        sys.stderr.write(f"ERROR: {error.message}\n  What to do: {error.remedy}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
