"""The control API as typed calls, for commands that a person runs: synchronous, one connection, clear errors.

Every answer is a message of `contracts.control`; every fault is an error of `core.errors`, either the one that control
sent as problem+json or UnavailableError when there was no usable answer.
"""

from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from gpupool.contracts.alerts import AlertsView, DeliveryView, SilenceView
from gpupool.contracts.api_tokens import ApiTokenReply, ApiTokenRequest, ApiTokenView
from gpupool.contracts.control import (
    DeployReply,
    DeployRequest,
    DeviceView,
    EventView,
    NodeView,
    PlacementView,
    PoolView,
    ScaleRequest,
    WhyView,
    WorkloadView,
)
from gpupool.contracts.feed import EndpointsView
from gpupool.contracts.hotkeys import HotkeyRequest, HotkeyView
from gpupool.contracts.nodes import DrainView, InviteReply, InviteRequest, JoinTokenView, NodeSettings
from gpupool.contracts.problems import error_of
from gpupool.contracts.purging import PurgedView, PurgeRequest
from gpupool.contracts.spec import SpecFile
from gpupool.core.errors import DeadlineError, InvalidInputError, UnavailableError
from gpupool.fleet.workloads import Protocol

ANSWER_SECONDS: Final = 30.0
DELIVERY_SECONDS: Final = 60.0
"""How long control may take to have a message delivered."""
CURSOR_HEADER: Final = "X-Next-Cursor"
"""Names where the next page of a list begins."""
_T = TypeVar("_T")


class ControlClient:
    """A client of one control process; use it as a context manager."""

    def __init__(self, url: str, token: str, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        """``url`` is ``http://host:port``; ``token`` goes out as a bearer token."""
        self.url = url.rstrip("/")
        self._answer_seconds = answer_seconds
        try:
            self._http = httpx.Client(
                base_url=self.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False
            )
        except httpx.InvalidURL as error:
            raise InvalidInputError(
                f"{url!r} is not an address of control: {error}.", remedy="Give it as http://HOST:PORT."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def pool(self) -> PoolView:
        """Return the pool in one look."""
        return self._get(PoolView, "/v1/pool")

    def nodes(
        self, *, state: str | None = None, region: str | None = None, gpu: str | None = None
    ) -> list[NodeView]:
        """Return the nodes, all or those in a state, of a region, with a GPU model; removed ones by their state only."""
        return self._list(list[NodeView], "/v1/nodes", state=state, region=region, gpu=gpu)

    def node(self, name: str) -> NodeView:
        """Return one node by name or, removed ones too, by id; raise NotFoundError when there is none."""
        return self._get(NodeView, f"/v1/nodes/{_part(name)}")

    def set_node(self, name: str, settings: NodeSettings) -> NodeView:
        """Note what a person says of a node; fields that were not given stay."""
        body = settings.model_dump(mode="json", include=settings.model_fields_set)
        return _parsed(NodeView, self._send("PATCH", f"/v1/nodes/{_part(name)}", json=body))

    def lock_node(self, name: str, *, locked: bool) -> NodeView:
        """Place nothing new on a node, or let new work come again; what runs there stays."""
        verb = "lock" if locked else "unlock"
        return _parsed(NodeView, self._send("POST", f"/v1/nodes/{_part(name)}/{verb}"))

    def drain_node(self, name: str) -> DrainView:
        """Have what runs on a node moved away; return what is still there."""
        return _parsed(DrainView, self._send("POST", f"/v1/nodes/{_part(name)}/drain"))

    def undrain_node(self, name: str) -> NodeView:
        """Let work stay on a node and come to it again."""
        return _parsed(NodeView, self._send("POST", f"/v1/nodes/{_part(name)}/undrain"))

    def drain_state(self, name: str) -> DrainView:
        """Return what still runs on a node and what each piece of it waits for."""
        return self._get(DrainView, f"/v1/nodes/{_part(name)}/drain")

    def remove_node(self, name: str, *, force: bool = False) -> None:
        """Take a node out of the pool; raise NodeInUseError where work runs there, unless ``force`` may end it."""
        self._send("DELETE", f"/v1/nodes/{_part(name)}", {"force": force})

    def invite(self, request: InviteRequest) -> InviteReply:
        """Mint a join token."""
        body = request.model_dump(mode="json")
        return _parsed(InviteReply, self._send("POST", "/v1/join-tokens", json=body))

    def join_tokens(self) -> list[JoinTokenView]:
        """Return the join tokens, oldest first; what they are made of is not in them."""
        return self._list(list[JoinTokenView], "/v1/join-tokens")

    def revoke_join_token(self, token_id: str) -> None:
        """Let nobody join with a token any more; raise NotFoundError when there is none of that id."""
        self._send("DELETE", f"/v1/join-tokens/{_part(token_id)}")

    def make_api_token(self, request: ApiTokenRequest) -> ApiTokenReply:
        """Make an API token; raise ConflictError where a usable one has that name."""
        body = request.model_dump(mode="json")
        return _parsed(ApiTokenReply, self._send("POST", "/v1/tokens", json=body))

    def api_tokens(self) -> list[ApiTokenView]:
        """Return the API tokens, oldest first; what they are made of is not in them."""
        return self._list(list[ApiTokenView], "/v1/tokens")

    def revoke_api_token(self, name: str) -> None:
        """Let a token open nothing any more; raise NotFoundError where none is called so."""
        self._send("DELETE", f"/v1/tokens/{_part(name)}")

    def add_hotkey(self, request: HotkeyRequest) -> HotkeyView:
        """Let a hotkey ask control; raise ConflictError where it or its name is known already."""
        body = request.model_dump(mode="json")
        return _parsed(HotkeyView, self._send("POST", "/v1/hotkeys", json=body))

    def hotkeys(self) -> list[HotkeyView]:
        """Return the hotkeys that may ask control, oldest first."""
        return self._list(list[HotkeyView], "/v1/hotkeys")

    def remove_hotkey(self, name: str) -> None:
        """Let a hotkey, by its name or address, ask nothing any more; raise NotFoundError where none is called so."""
        self._send("DELETE", f"/v1/hotkeys/{_part(name)}")

    def devices(self) -> list[DeviceView]:
        """Return every device with its claims."""
        return self._list(list[DeviceView], "/v1/devices")

    def deploy(self, spec: SpecFile) -> DeployReply:
        """Want a workload: make it, or change the one of that name."""
        body = DeployRequest(spec=spec).model_dump(mode="json")
        return _parsed(DeployReply, self._send("POST", "/v1/workloads", json=body))

    def workloads(self) -> list[WorkloadView]:
        """Return every workload that is wanted."""
        return self._list(list[WorkloadView], "/v1/workloads")

    def workload(self, name: str) -> WorkloadView:
        """Return one workload; raise NotFoundError when there is none of that name."""
        return self._get(WorkloadView, f"/v1/workloads/{_part(name)}")

    def delete_workload(self, name: str) -> None:
        """Want a workload no longer; its placements end politely. Raise NotFoundError when there is none."""
        self._send("DELETE", f"/v1/workloads/{_part(name)}")

    def scale_workload(self, name: str, wanted: int) -> WorkloadView:
        """Want ``wanted`` (0-1000) instances of a workload."""
        body = ScaleRequest(wanted=wanted).model_dump()
        return _parsed(WorkloadView, self._send("POST", f"/v1/workloads/{_part(name)}/scale", json=body))

    def why(self, name: str) -> WhyView:
        """Return why a workload is not placed as wanted, or where another instance would go."""
        return self._get(WhyView, f"/v1/workloads/{_part(name)}/why")

    def placements(
        self, *, workload: str | None = None, node: str | None = None, live: bool | None = None
    ) -> list[PlacementView]:
        """Return placements, all or those of one workload or node, all or only live (or only final) ones."""
        return self._list(list[PlacementView], "/v1/placements", workload=workload, node=node, live=live)

    def placement(self, placement_id: str) -> PlacementView:
        """Return one placement, however old; raise NotFoundError where there is none of that id."""
        return self._get(PlacementView, f"/v1/placements/{_part(placement_id)}")

    def purge(self, request: PurgeRequest) -> list[PurgedView]:
        """End deployments so that they are placed anew; return those that are ending."""
        body = request.model_dump(mode="json")
        return _parsed(list[PurgedView], self._send("POST", "/v1/purges", json=body))

    def logs(self, placement_id: str, lines: int = 100) -> str:
        """Return the last ``lines`` (>= 1) lines that a placement's process wrote."""
        return self._send("GET", f"/v1/placements/{_part(placement_id)}/logs", {"lines": lines}).text

    def events(
        self,
        after: int = 0,
        limit: int = 100,
        wait: float = 0.0,
        *,
        subject: str | None = None,
        by: str | None = None,
        asked: bool = False,
        latest: bool = False,
    ) -> list[EventView]:
        """Return events with a sequence number above ``after``, waiting up to ``wait`` seconds for the first one.

        ``subject``: only those of one thing, by its id; ``asked``: only what somebody asked for, ``by`` this one;
        ``latest``: the last ones of them instead of the first ones.
        """
        chosen = {"subject": subject, "by": by, "asked": asked or None, "latest": latest or None}
        return self._get(
            list[EventView], "/v1/events", hold=wait, after=after, limit=limit, wait=wait, **chosen
        )

    def alerts(self) -> AlertsView:
        """Return what is wrong, who is told, and how the latest messages went."""
        return self._get(AlertsView, "/v1/alerts")

    def test_alerts(self, to: str | None = None) -> list[DeliveryView]:
        """Have a test message sent to one target or all; raise NotFoundError when there is none of that name."""
        reply = self._send("POST", "/v1/alerts/test", json={"to": to}, hold=DELIVERY_SECONDS)
        return _parsed(list[DeliveryView], reply)

    def silence(self, pattern: str, seconds: float, why: str, by: str) -> SilenceView:
        """Have nothing told of some alarms for so long; ``by``: who says so."""
        body = {"pattern": pattern, "seconds": seconds, "why": why, "by": by}
        return _parsed(SilenceView, self._send("POST", "/v1/silences", json=body))

    def silences(self) -> list[SilenceView]:
        """Return the silences in force."""
        return self._get(list[SilenceView], "/v1/silences")

    def unsilence(self, silence_id: str) -> None:
        """End a silence; raise NotFoundError when there is none of that id."""
        self._send("DELETE", f"/v1/silences/{_part(silence_id)}")

    def endpoints(self, protocol: Protocol) -> EndpointsView:
        """Return the present view of what can be called."""
        return self._get(EndpointsView, "/v1/endpoints", protocol=str(protocol))

    def _get(self, kind: type[_T], path: str, /, *, hold: float = 0.0, **parameters: Any) -> _T:
        return _parsed(kind, self._send("GET", path, _given(parameters), hold=hold))

    def _list(self, kind: type[list[_T]], path: str, /, **parameters: Any) -> list[_T]:
        """Return a whole list, page by page."""
        found: list[_T] = []
        cursor: str | None = None
        while True:
            reply = self._send("GET", path, _given(parameters | {"cursor": cursor}))
            page = _parsed(kind, reply)
            found += page
            cursor = reply.headers.get(CURSOR_HEADER)
            if cursor is None or not page:
                return found

    def _send(
        self, method: str, path: str, parameters: Any = None, *, json: Any = None, hold: float = 0.0
    ) -> httpx.Response:
        """Send one request; ``hold`` is how long control may keep it open on purpose, in seconds."""
        timeout = httpx.Timeout(self._answer_seconds + hold, connect=5.0)
        try:
            reply = self._http.request(method, path, params=parameters, json=json, timeout=timeout)
        except httpx.ConnectTimeout as error:
            raise self._unreachable("it does not answer") from error
        except httpx.TimeoutException as error:
            raise DeadlineError(
                f"Control at {self.url} did not answer within {timeout.read:g} s.",
                remedy="Look at its log, then try again.",
            ) from error
        except (httpx.HTTPError, OSError) as error:
            raise self._unreachable(str(error) or type(error).__name__) from error
        if not reply.is_success:
            raise error_of(reply.status_code, _json_or_none(reply))
        return reply

    def _unreachable(self, why: str) -> UnavailableError:
        return UnavailableError(
            f"Control at {self.url} cannot be reached: {why}.",
            remedy="Start the pool (`gpupool up`), or give the right address with --control or GPUPOOL_CONTROL_URL.",
        )


def _parsed(kind: type[_T], reply: httpx.Response) -> _T:
    try:
        return TypeAdapter(kind).validate_json(reply.content)
    except ValidationError as error:
        raise UnavailableError(
            f"The answer of {reply.request.url} is not what this version expects.",
            remedy="Check that the address is control's and that both sides run the same version.",
        ) from error


def _given(parameters: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parameters.items() if value is not None}


def _json_or_none(reply: httpx.Response) -> Any:
    try:
        return reply.json()
    except ValueError:
        return None


def _part(name: str) -> str:
    """Return ``name`` as one path segment, so that no name reaches another route."""
    return quote(name, safe="")
