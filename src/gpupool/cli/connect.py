"""How commands find control: what they are told, else the process record in the state folder, else the default port."""

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpupool.core.errors import UnauthorizedError
from gpupool.core.home import Home
from gpupool.core.records import ProcessRecord

if TYPE_CHECKING:
    from gpupool.contracts.control_client import ControlClient

DEFAULT_URL: Final = "http://127.0.0.1:32000"
URL_VARIABLE: Final = "GPUPOOL_CONTROL_URL"
ControlOption = Annotated[
    str | None,
    typer.Option(
        "--control",
        envvar=URL_VARIABLE,
        metavar="URL",
        help="Address of control; left out, the one that runs from GPUPOOL_HOME.",
    ),
]


def control_url(given: str | None, home: Home) -> str:
    """Return the address of control."""
    return url_of("control", given, home, DEFAULT_URL)


def url_of(role: str, given: str | None, home: Home, default: str) -> str:
    """Return the address of a process: what was given, else that of the one that runs from ``home``, else ``default``."""
    if given:
        return given.rstrip("/")
    try:
        record = ProcessRecord.read(home.run / f"{role}.json")
    except OSError:
        # Another user's folder: it cannot name the address, and a token from the environment may still open it.
        record = None
    if record is not None and record.url is not None and record.process.alive():
        return record.url
    return default


def operator_token(home: Home) -> str:
    """Return the operator token from ``GPUPOOL_TOKEN`` or the state folder; raise UnauthorizedError without one."""
    token = os.environ.get("GPUPOOL_TOKEN", "").strip()
    if token:
        return token
    try:
        return home.operator_token.read_text().strip()
    except OSError as error:
        raise UnauthorizedError(
            f"There is no readable operator token at {home.operator_token}.",
            remedy="Start the pool first (`./up`), or name its state folder with GPUPOOL_HOME "
            "(a token of another pool goes into GPUPOOL_TOKEN).",
        ) from error


def connect(url: str | None = None, *, answer_seconds: float | None = None) -> "ControlClient":
    """Return a client of the pool that this shell means; ``answer_seconds``: how long it waits for an answer at most."""
    from gpupool.contracts.control_client import ANSWER_SECONDS, ControlClient

    home = Home.from_environment()
    return ControlClient(
        control_url(url, home), operator_token(home), answer_seconds=answer_seconds or ANSWER_SECONDS
    )
