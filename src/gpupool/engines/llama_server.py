"""The one place that touches xllamacpp: llama.cpp's own OpenAI-compatible HTTP server inside this process.

The package is a compiled module without types, so it is loaded by name and everything that comes out of it gets a
type here. Its faults are one RuntimeError for everything; the reason stands in the lines that llama.cpp writes to
standard error, which the error points to.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpupool.core.errors import EnvironmentProblemError, PortTakenError
from gpupool.core.ports import port_is_free

_CLIENT_TIMEOUT_SECONDS: Final = 120


class EngineError(EnvironmentProblemError):
    """The inference engine cannot run."""

    code = "engine"


@dataclass(frozen=True, slots=True)
class LlamaOptions:
    """What a server is started with."""

    weights: Path
    alias: str
    """The model name that clients see."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 lets the system choose; see `LlamaServer.address`."""
    threads: int = 1
    """Cores for the arithmetic. llama.cpp's threads spin: more of them than idle cores is far slower than one."""
    parallel: int = 1
    """Requests answered side by side; others wait their turn."""
    context: int = 2048
    """Tokens, prompt and answer together, of one request."""


class LlamaServer:
    """A running server; constructed when it listens and its model is loaded, `close` ends it."""

    def __init__(self, options: LlamaOptions) -> None:
        """Load the model and listen; blocks for as long as the load takes.

        Raises PortTakenError, or EngineError where the engine is missing or refuses the model.
        """
        engine = _load_engine()
        if options.port and not port_is_free(options.port, options.host):
            raise PortTakenError(
                f"Port {options.port} on {options.host} is taken.", remedy="Give a free one with --port."
            )
        self.devices: tuple[str, ...] = tuple(str(device["name"]) for device in engine.get_device_info())
        """What the installed build of the engine can compute on, such as ``("CPU",)``."""
        try:
            self._server: Any = engine.Server(_parameters(engine, options))
        except RuntimeError as error:
            raise EngineError(
                f"llama.cpp cannot serve {options.weights}.",
                remedy="Its own lines above name the reason; a damaged or truncated model file is the usual one.",
            ) from error
        self.address: str = str(self._server.listening_address)

    def close(self) -> None:
        """Stop listening, drop what is being answered and free the model."""
        self._server = None


def _load_engine() -> Any:
    try:
        return importlib.import_module("xllamacpp")
    except ModuleNotFoundError as error:
        raise EngineError(
            "The package xllamacpp is not installed.",
            remedy="Install the demo's packages: run ./up (or install gpupool[demo]).",
        ) from error
    except ImportError as error:
        raise EngineError(
            f"The package xllamacpp cannot be loaded: {error}.",
            remedy="Install the system library it names (on Debian and Ubuntu: apt-get install libgomp1 libstdc++6).",
        ) from error


def _parameters(engine: Any, options: LlamaOptions) -> Any:
    parameters = engine.CommonParams()
    parameters.model.path = str(options.weights)
    parameters.model_alias = {options.alias}
    parameters.hostnames = [options.host]
    parameters.port = options.port
    parameters.cpuparams.n_threads = options.threads
    parameters.cpuparams_batch.n_threads = options.threads
    parameters.n_parallel = options.parallel
    parameters.n_ctx = options.context * options.parallel
    parameters.n_gpu_layers = 0
    parameters.fit_params = False
    # A page in the operator's browser must not be able to talk to it, nor a silent client hold it for an hour.
    parameters.cors_origins = ""
    parameters.timeout_read = parameters.timeout_write = _CLIENT_TIMEOUT_SECONDS
    parameters.ui = parameters.endpoint_slots = False
    # The prompt cache in RAM defaults to 8 GiB: more than the node may have promised this chute.
    parameters.cache_idle_slots = False
    parameters.cache_ram_mib = 0
    parameters.offline = True
    return parameters
