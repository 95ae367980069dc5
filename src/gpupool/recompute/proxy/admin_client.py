"""How a command talks to a proxy that runs on this machine: find its record, ask, and turn refusals into errors."""

import http.client
import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from gpupool.core import errors
from gpupool.recompute.proxy.admin_record import AdminRecord
from gpupool.recompute.proxy.state_folder import candidates, known_folders

SECONDS: Final = 60.0
_MOST_ANSWER: Final = 64 * 1024 * 1024
_REMEDY: Final = (
    "Start it with `gpupool recompute proxy`, or run this command as its user and with its GPUPOOL_HOME."
)
_ERRORS: Final[dict[str, type[errors.GpupoolError]]] = {
    kind.code: kind
    for kind in (
        errors.InvalidInputError,
        errors.TooLargeError,
        errors.NotFoundError,
        errors.ConflictError,
        errors.LimitReachedError,
        errors.UnauthorizedError,
        errors.BusyError,
        errors.EnvironmentProblemError,
    )
}


class AdminClient:
    """Asks one proxy."""

    def __init__(self, record: AdminRecord) -> None:
        self.record = record

    @classmethod
    def of(cls, port: int | None) -> "AdminClient":
        """Return the client for the proxy on ``port``; None: the only one that runs here.

        Raises UnavailableError where there is none, ConflictError where several run and none is named.
        """
        if port is not None:
            return cls(_record_of(port))
        clients = [cls(record) for record in map(AdminRecord.read, known_folders()) if record is not None]
        if len(clients) > 1:
            clients = [client for client in clients if client.lives()]
        if not clients:
            raise errors.UnavailableError(
                f"No proxy of this user runs here (looked in {_places()}).", remedy=_REMEDY
            )
        if len(clients) > 1:
            ports = ", ".join(str(client.record.public_port) for client in clients)
            raise errors.ConflictError(
                f"Several proxies run here, on the ports {ports}.", remedy="Name one of them with --port."
            )
        return clients[0]

    def lives(self) -> bool:
        """Tell whether the proxy answers."""
        try:
            self.get("/v1/alerts")
        except errors.GpupoolError:
            return False
        return True

    def get(self, path: str, **query: str) -> Any:
        """Return what is at a path; raise errors of `core.errors`."""
        return self._ask("GET", f"{path}?{urlencode(query)}" if query else path, None)

    def post(self, path: str, body: object = None) -> Any:
        """Tell the proxy to do something and return its answer; raise errors of `core.errors`."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, target: str, body: object) -> Any:
        record = self.record
        connection = http.client.HTTPConnection(record.host, record.port, timeout=SECONDS)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, target, data, {"Authorization": f"Bearer {record.token}"})
            response = connection.getresponse()
            answer = json.loads(response.read(_MOST_ANSWER))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise errors.UnavailableError(
                f"The proxy of port {record.public_port} (pid {record.pid}) does not answer: {error}.",
                remedy=_REMEDY,
            ) from error
        finally:
            connection.close()
        if response.status != 200:
            raise _error_of(answer)
        return answer


def _record_of(port: int) -> AdminRecord:
    for folder in known_folders():
        record = AdminRecord.read(folder) if folder.name == str(port) else None
        if record is not None:
            return record
    raise errors.UnavailableError(
        f"No proxy of this user runs on port {port} of this machine (looked in {_places()}).", remedy=_REMEDY
    )


def _places() -> str:
    return " and ".join(str(Path(root)) for root in candidates())


def _error_of(answer: Any) -> errors.GpupoolError:
    told = answer if isinstance(answer, dict) else {}
    kind = _ERRORS.get(str(told.get("code")), errors.GpupoolError)
    return kind(str(told.get("detail", "The proxy refused without a reason.")), remedy=told.get("remedy"))
