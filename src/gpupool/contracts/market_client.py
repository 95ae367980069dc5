"""The embedded market's owner interface as typed calls, for commands that a person runs."""

from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from gpupool.contracts.market import LedgerLine, MarketChuteView, MarketImageView, MarketJobView
from gpupool.core.errors import (
    ConflictError,
    GpupoolError,
    InvalidInputError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)

ANSWER_SECONDS: Final = 30.0
_T = TypeVar("_T")
_KINDS: Final[dict[int, type[GpupoolError]]] = {
    401: UnauthorizedError,
    404: NotFoundError,
    409: ConflictError,
}


class MarketClient:
    """A client of one market; use it as a context manager."""

    def __init__(self, url: str, token: str) -> None:
        """``url`` is ``http://host:port``; ``token``: the operator token."""
        self.url = url.rstrip("/")
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {token}"},
                trust_env=False,
                timeout=ANSWER_SECONDS,
            )
        except httpx.InvalidURL as error:
            raise InvalidInputError(
                f"{url!r} is not an address of a market: {error}.", remedy="Give it as http://HOST:PORT."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def publish_image(self, user: str, name: str, tag: str) -> MarketImageView:
        """Make an image known, or say that it was built anew."""
        return self._ask(MarketImageView, "POST", "/market/images", {"user": user, "name": name, "tag": tag})

    def publish(self, chute: dict[str, Any]) -> MarketChuteView:
        """Publish a chute, or change the one of that owner and name."""
        return self._ask(MarketChuteView, "POST", "/market/chutes", chute)

    def chutes(self) -> list[MarketChuteView]:
        """Return the catalog."""
        return self._ask(list[MarketChuteView], "GET", "/market/chutes")

    def withdraw(self, chute_id: str) -> None:
        """Take a chute out of the catalog."""
        self._ask(dict[str, Any], "DELETE", f"/market/chutes/{quote(chute_id, safe='')}")

    def set_target(self, chute_id: str, target: int) -> None:
        """Want another number of instances."""
        path = f"/market/chutes/{quote(chute_id, safe='')}/target"
        self._ask(dict[str, Any], "POST", path, {"target": target})

    def ask(self, chute_id: str, method: str, arguments: dict[str, Any]) -> MarketJobView:
        """Have a job run."""
        body = {"chute_id": chute_id, "method": method, "arguments": arguments}
        return self._ask(MarketJobView, "POST", "/market/jobs", body)

    def jobs(self) -> list[MarketJobView]:
        """Return every job, the latest day's finished ones included."""
        return self._ask(list[MarketJobView], "GET", "/market/jobs")

    def ledger(self, since: float, until: float) -> list[LedgerLine]:
        """Return what was earned in a time (seconds since 1970)."""
        return self._ask(list[LedgerLine], "GET", f"/market/ledger?since={since}&until={until}")

    def _ask(self, kind: type[_T], method: str, path: str, body: dict[str, Any] | None = None) -> _T:
        try:
            reply = self._http.request(method, path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnavailableError(
                f"The market at {self.url} cannot be reached: {str(error) or type(error).__name__}.",
                remedy="Start it with `gpupool market serve`, or name its address with --market.",
            ) from error
        if reply.status_code >= 300:
            raise _refusal(reply, self.url)
        try:
            return TypeAdapter(kind).validate_json(reply.content)
        except ValidationError as error:
            raise UnavailableError(f"What answers at {self.url} is no market.") from error


def _refusal(reply: httpx.Response, url: str) -> GpupoolError:
    try:
        found = reply.json()
    except ValueError:
        found = None
    detail = str(found.get("detail", "")) if isinstance(found, dict) else ""
    if reply.status_code >= 500 or not detail:
        return UnavailableError(f"The market at {url} answered {reply.status_code}. {detail}".rstrip())
    return _KINDS.get(reply.status_code, InvalidInputError)(detail)
