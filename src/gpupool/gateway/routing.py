"""Which endpoint gets a request: the feed's last view as an index by model, and how busy each endpoint is with us.

The choice is the fewest outstanding requests, an endpoint of unknown health only when there is no healthy one, and
ties take turns. Counts belong to an endpoint's id, so a new view does not forget what is under way.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from gpupool.contracts.feed import EndpointsView, FeedEndpoint, FeedWorkload
from gpupool.fleet.endpoints import EndpointHealth
from gpupool.gateway.faults import GatewayError

_RETRY_SECONDS: Final = {"starting": 5, "active": 5, "waiting": 20}
_LISTED: Final = 20


class Upstream:
    """One endpoint and what is under way there."""

    def __init__(self, endpoint: FeedEndpoint) -> None:
        self.endpoint = endpoint
        self.outstanding = 0
        self.own_name: str | None = None
        """What this server calls the model, where it refused the clients' name."""
        self.names_asked = False
        """Whether it was asked for its models already."""

    @property
    def base_url(self) -> str:
        """``http://host:port``."""
        return f"http://{self.endpoint.address}"

    def move(self, endpoint: FeedEndpoint) -> None:
        """Take what the newest view says; at another address another process listens, which may use other names."""
        if endpoint.address != self.endpoint.address:
            self.own_name, self.names_asked = None, False
        self.endpoint = endpoint

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count one request as outstanding for as long as the block lasts."""
        self.outstanding += 1
        try:
            yield
        finally:
            self.outstanding -= 1

    def burden(self) -> tuple[bool, int]:
        """Return what the choice compares; less is better."""
        return self.endpoint.health is not EndpointHealth.OK, self.outstanding


class Router:
    """The last view of the feed, asked by model name."""

    def __init__(self) -> None:
        self._upstreams: dict[str, Upstream] = {}
        self._by_model: dict[str, list[Upstream]] = {}
        self._workloads: dict[str, FeedWorkload] = {}
        self._turn = 0
        self.ready = False
        """Whether there has been any complete view."""

    def update(self, view: EndpointsView) -> None:
        """Route by ``view`` from now on; requests under way are not disturbed."""
        upstreams: dict[str, Upstream] = {}
        by_model: dict[str, list[Upstream]] = {}
        for endpoint in view.endpoints:
            upstream = self._upstreams.get(endpoint.id) or Upstream(endpoint)
            upstream.move(endpoint)
            upstreams[endpoint.id] = upstream
            if endpoint.state == "active":
                for model in endpoint.models:
                    by_model.setdefault(model, []).append(upstream)
        self._upstreams, self._by_model = upstreams, by_model
        self._workloads = _workloads_by_model(view.workloads)
        self.ready = True

    def models(self) -> dict[str, int]:
        """Return every model that can be asked for, cold ones included, with its birth in Unix seconds."""
        return {
            model: int(workload.created_at)
            for model, workload in sorted(self._workloads.items())
            if workload.state != "off"
        }

    def choose(self, model: str, without: Collection[Upstream] = ()) -> Upstream | None:
        """Return the endpoint for the next request; None when there is none besides those in ``without``."""
        candidates = [upstream for upstream in self._by_model.get(model, ()) if upstream not in without]
        if not candidates:
            return None
        self._turn = (self._turn + 1) % 1_000_000_007
        shift = self._turn % len(candidates)
        return min(candidates[shift:] + candidates[:shift], key=Upstream.burden)

    def knows(self, model: str) -> bool:
        """Tell whether some workload of the view offers ``model``, ready or not."""
        return model in self._workloads

    def outstanding(self) -> dict[str, int]:
        """Return the requests under way by model."""
        return {
            model: sum(upstream.outstanding for upstream in upstreams)
            for model, upstreams in self._by_model.items()
        }

    def absence(self, model: str) -> GatewayError:
        """Return why nothing answers for ``model`` now, and what to do."""
        if not self.ready:
            return GatewayError(
                503,
                "not_ready",
                "The gateway has not yet heard from control which models there are. Try again in a moment.",
                headers={"Retry-After": "1"},
            )
        workload = self._workloads.get(model)
        if workload is None:
            return _no_such_model(model, f"There are: {_enumerate(list(self.models()))}.")
        if workload.state == "off":
            return _no_such_model(model, f"The workload {workload.name} that offers it has 0 replicas.")
        return _cold(model, workload)


def _workloads_by_model(workloads: list[FeedWorkload]) -> dict[str, FeedWorkload]:
    """Where two offer a model, the one that is nearer to serving speaks for it; then the older one."""
    nearness = ["active", "starting", "waiting", "off"]
    found: dict[str, FeedWorkload] = {}
    for workload in sorted(workloads, key=lambda item: (nearness.index(item.state), item.created_at)):
        for model in workload.models:
            found.setdefault(model, workload)
    return found


def _no_such_model(model: str, hint: str) -> GatewayError:
    return GatewayError(
        404, "model_not_found", f"There is no model {model[:200]!r} here. {hint}", param="model"
    )


def _cold(model: str, workload: FeedWorkload) -> GatewayError:
    seconds = _RETRY_SECONDS[workload.state]
    happening = {
        "active": f"Its workload {workload.name} runs, but none of its instances takes new requests now",
        "starting": f"Its workload {workload.name} is starting",
        "waiting": f"Its workload {workload.name} waits for a place",
    }[workload.state]
    why = f" ({workload.why.rstrip('.')})" if workload.why else ""
    return GatewayError(
        503,
        "model_not_ready",
        f"The model {model!r} is not ready yet. {happening}{why}. Try again in {seconds} s.",
        param="model",
        headers={"Retry-After": str(seconds)},
    )


def _enumerate(names: list[str]) -> str:
    if not names:
        return "none yet (deploy one with `gpupool chute deploy`)"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
