"""The farmer's own RPC: which solvers it is connected to, and the one call that connects it to another.

It is reached as Chia's own commands reach it: over TLS with the certificate of the daemon, of the farm's private
authority. Names in these certificates are all the same and say nothing, so only the authority counts.
"""

import errno
import json
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gpupool.core.errors import EnvironmentProblemError, UnavailableError
from gpupool.recompute.addresses import Address, format_address
from gpupool.recompute.credentials import show
from gpupool.recompute.solver_front.identity import node_id_of

RPC_PORT: Final = 8559
SOLVER_TYPE: Final = 8
_SECONDS: Final = 40.0
"""The farmer itself gives a solver 30 s to answer."""
_ANSWER_LIMIT: Final = 1024 * 1024


class FarmerRefusedError(UnavailableError):
    """The farmer could not connect to the solver."""

    code = "farmer_refused"
    default_remedy = (
        "Check that `gpupool solver serve` runs, that the farmer's machine reaches its port, and that its list of"
        " farmers has this farmer's node id."
    )


@dataclass(frozen=True, slots=True)
class SolverConnection:
    """A solver that the farmer is connected to."""

    node_id: str
    host: str
    port: int | None
    """That it says it listens on."""
    since: float
    """Unix time."""


def farmer_node_id(root: Path) -> str | None:
    """Return the node id that a front knows the farmer of this Chia folder by; None where it cannot be read."""
    try:
        found = x509.load_pem_x509_certificate((root / "config/ssl/farmer/public_farmer.crt").read_bytes())
    except (OSError, ValueError):
        return None
    return node_id_of(found.public_bytes(Encoding.DER))


def rpc_context(root: Path) -> ssl.SSLContext:
    """Return the TLS context for the RPC of the Chia folder ``root``; raises EnvironmentProblemError."""
    folder = root / "config" / "ssl"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    try:
        context.load_verify_locations(folder / "ca" / "private_ca.crt")
    except OSError as error:
        raise EnvironmentProblemError(
            f"The private authority in {folder} cannot be used: {error.strerror or error}.",
            remedy="Name the farm's Chia folder with --chia-root (Chia's default is ~/.chia/mainnet), and run this as its"
            " user.",
        ) from error
    show(context, folder / "daemon" / "private_daemon.crt", folder / "daemon" / "private_daemon.key")
    return context


class FarmerRpc:
    """One farmer."""

    def __init__(self, address: Address, context: ssl.SSLContext, session: aiohttp.ClientSession) -> None:
        self.name = format_address(address)
        self._context, self._session = context, session

    async def solvers(self) -> list[SolverConnection]:
        """Return the solvers it is connected to; raises UnavailableError."""
        answer = await self._call("get_connections", {"node_type": SOLVER_TYPE})
        try:
            return [
                SolverConnection(
                    str(row["node_id"]).removeprefix("0x"),
                    str(row["peer_host"]),
                    None if row["peer_server_port"] is None else int(row["peer_server_port"]),
                    float(row["creation_time"]),
                )
                for row in answer["connections"]
                if int(row["type"]) == SOLVER_TYPE
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise UnavailableError(
                f"The farmer {self.name} lists its connections in a way not known here."
            ) from error

    async def connect(self, solver: Address) -> None:
        """Let it drop every solver and connect to this one; raises FarmerRefusedError or UnavailableError."""
        answer = await self._call("connect_to_solver", {"host": solver[0], "port": solver[1]})
        if answer.get("success") is not True:
            raise FarmerRefusedError(
                f"The farmer {self.name} could not connect to {format_address(solver)}:"
                f" {str(answer.get('error', 'it does not say why'))[:300]}."
            )

    async def _call(self, what: str, body: dict[str, object]) -> dict[str, Any]:
        url = f"https://{self.name}/{what}"
        try:
            async with self._session.post(
                url, json=body, ssl=self._context, timeout=aiohttp.ClientTimeout(_SECONDS, sock_connect=5.0)
            ) as reply:
                text = await reply.content.read(_ANSWER_LIMIT)
                status = reply.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnavailableError(
                f"The RPC of the farmer {self.name} cannot be asked: {_reason(error)}.",
                remedy=f"Check that the farmer runs, that this is its RPC port ({RPC_PORT} by default; farmer.rpc_port in"
                " Chia's config.yaml, named with --farmer HOST:PORT), and that --chia-root is its own folder.",
            ) from error
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if status != 200 or not isinstance(answer, dict):
            raise UnavailableError(f"The farmer {self.name} answered {status} to {what}.")
        return answer


def _reason(error: Exception) -> str:
    """Return why there was no answer, without the inner names that aiohttp adds to a refused connection."""
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno in (
        errno.ECONNREFUSED,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
    ):
        return os.strerror(error.os_error.errno)
    return str(error) or "no answer in time"
