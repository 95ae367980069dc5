"""The flags of a recompute server, which `gpupool recompute serve` and the drop-in command share.

Letters and meanings are those of the original program, so that a start script needs no change.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gpupool.devices.recovery.choosing import Maker
    from gpupool.recompute.server.settings import RecomputeServerSettings
    from gpupool.recompute.server.staffing import WorkerPlan
    from gpupool.recompute.variables import ChiaposVariables


@dataclass(frozen=True, slots=True)
class Staff:
    """Whoever computes on this machine."""

    plans: "list[WorkerPlan]"
    notices: list[str]
    """Lines on what was asked for and is not there, driver faults among them."""
    faults: "dict[Maker, str]"
    """What went wrong where the cards of a maker were looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """What computes: how many threads, and which cards; None or empty where a flag was not given."""

    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            "-r",
            help="Threads that compute [CHIAPOS_MAX_CORES, else 16], never more than cores; 0 or less: all cores.",
        ),
    ] = None
    cuda_devices: Annotated[
        int | None,
        typer.Option(
            "--cuda-devices", "-G", min=0, help="Most CUDA cards [CHIAPOS_MAX_CUDA_DEVICES, else all]."
        ),
    ] = None
    opencl_devices: Annotated[
        int | None,
        typer.Option(
            "--opencl-devices", "-O", min=0, help="Most OpenCL cards [CHIAPOS_MAX_OPENCL_DEVICES, else all]."
        ),
    ] = None
    cuda: Annotated[
        list[str] | None,
        typer.Option("--cuda", "-g", metavar="INDEX", help="CUDA cards from 0: 0,1 or repeated [all]."),
    ] = None
    opencl: Annotated[
        list[str] | None,
        typer.Option("--opencl", "-c", metavar="INDEX", help="OpenCL cards from 0: 0,1 or repeated [all]."),
    ] = None

    def staff(self) -> "Staff":
        """Return a worker for each device, the CPU's first, and what was asked for and is not there.

        Looks for cards, which may take seconds. Raises InvalidInputError where an index names no card.
        """
        from gpupool.recompute.server.banner import processor_name
        from gpupool.recompute.server.cards import CardChoices, find_cards, notices, use_cards
        from gpupool.recompute.server.staffing import card_workers, cpu_worker
        from gpupool.recompute.variables import ChiaposVariables

        variables = ChiaposVariables.from_environment()
        choices = CardChoices.of(
            variables, self.cuda_devices, self.opencl_devices, self.cuda or [], self.opencl or []
        )
        given = {} if self.threads is None else {"recompute_threads": self.threads}
        threads = _server_settings(given, variables).threads.used
        found = find_cards(choices)
        plans = [cpu_worker(processor_name(), threads), *card_workers(use_cards(choices, found))]
        return Staff(plans, notices(choices, found), dict(found.faults))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions(DeviceOptions):
    """Where a server listens, and what computes; None or empty where a flag was not given."""

    port: Annotated[
        int | None, typer.Option("--port", "-p", help="Port to listen on [11989]; 0 takes a free one.")
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the server's settings that these flags are, by name."""
        return {"recompute_port": self.port, "recompute_threads": self.threads}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """Who may ask a server; None where a flag was not given."""

    token_file: Annotated[
        Path | None, typer.Option(help="Bearer tokens, one a line; requests must bring one of them.")
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate (PEM): turns TLS on, and plain clients away.")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(help="Key of the certificate (PEM).")] = None
    client_ca: Annotated[
        Path | None, typer.Option(help="Authority (PEM) of clients' certificates: mutual TLS.")
    ] = None

    def settings(self) -> dict[str, Any]:
        """Return the server's settings that these flags are, by name."""
        return {f"recompute_{name}": value for name, value in asdict(self).items()}

    def flags(self) -> dict[str, Any]:
        """Return the values by the flags' own names."""
        return {f"--{name.replace('_', '-')}": value for name, value in asdict(self).items()}


def start(listen: ListenOptions, **given: object) -> None:
    """Serve until stopped; ``given`` are more settings by name, None where a flag was not given.

    A flag counts more than a ``GPUPOOL_*`` variable, and that more than a ``CHIAPOS_*`` one.
    """
    from gpupool.core.standard_streams import outlive_failures
    from gpupool.recompute.server.cards import CardChoices
    from gpupool.recompute.server.main import run
    from gpupool.recompute.variables import ChiaposVariables

    variables = ChiaposVariables.from_environment()
    choices = CardChoices.of(
        variables, listen.cuda_devices, listen.opencl_devices, listen.cuda or [], listen.opencl or []
    )
    flags = {key: value for key, value in {**listen.settings(), **given}.items() if value is not None}
    settings = _server_settings(flags, variables)
    outlive_failures()
    run(settings, choices)


def _server_settings(flags: Mapping[str, object], variables: "ChiaposVariables") -> "RecomputeServerSettings":
    """Return what flags, ``GPUPOOL_*`` and ``CHIAPOS_*`` variables say, the first counting most."""
    from pydantic import ValidationError

    from gpupool.contracts.problems import describe
    from gpupool.core.errors import InvalidInputError
    from gpupool.recompute.server.settings import RecomputeServerSettings

    try:
        settings = RecomputeServerSettings.model_validate(flags)
        if "recompute_threads" in settings.model_fields_set:
            return settings
        return RecomputeServerSettings.model_validate({**flags, "recompute_threads": variables.max_cores})
    except ValidationError as error:
        raise InvalidInputError(
            f"The recompute server's settings are not valid: {describe(error)}."
        ) from error


def start_external(
    listen: ListenOptions, *, given: Mapping[str, Any], refused: Mapping[str, object], log_level: str | None
) -> None:
    """Keep the operator's own program running until stopped.

    ``given``: more fields of ExternalServer, ``refused``: flags that mean nothing to that program; None where a flag was
    not given.
    """
    from gpupool.core.errors import InvalidInputError
    from gpupool.recompute.server.cards import CardChoices
    from gpupool.recompute.server.external import ExternalServer, run_external
    from gpupool.recompute.variables import ChiaposVariables

    wrong = [flag for flag, value in refused.items() if value is not None]
    if wrong:
        raise InvalidInputError(
            f"With --external, {', '.join(wrong)} cannot be honoured: the original program has no such thing.",
            remedy="Leave it out, or put a gpupool recompute proxy in front for TLS and tokens.",
        )
    if log_level not in {None, "DEBUG", "INFO", "WARNING", "ERROR"}:
        raise InvalidInputError(
            f"{log_level!r} is no log level.", remedy="Use DEBUG, INFO, WARNING or ERROR."
        )
    # The program reads its variables itself; only flags are passed on.
    choices = CardChoices.of(
        ChiaposVariables(),
        listen.cuda_devices,
        listen.opencl_devices,
        listen.cuda or [],
        listen.opencl or [],
    )
    fields = {"port": listen.port, "threads": listen.threads, **given}
    server = ExternalServer(**{key: value for key, value in fields.items() if value is not None})
    run_external(server, choices, log_level or "INFO")


def refuse_without_external(flags: Mapping[str, object]) -> None:
    """Raise InvalidInputError where one of ``flags`` was given, which only an external program has a use for."""
    from gpupool.core.errors import InvalidInputError

    given = [flag for flag, value in flags.items() if value is not None]
    if given:
        raise InvalidInputError(
            f"{', '.join(given)} is for an external program.", remedy="Give --external too, or leave it out."
        )
