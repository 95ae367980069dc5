"""Keeps what is known about the nodes true: what they speak, whether they live, and that none of them is ourselves."""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import structlog

from gpupool.recompute.credentials import is_loopback
from gpupool.recompute.proxy.dispatching import Dispatcher
from gpupool.recompute.proxy.names import addresses_of
from gpupool.recompute.proxy.nodes import Kind, Node
from gpupool.recompute.proxy.probing import Finding, ask_frame, ask_server

if TYPE_CHECKING:
    from gpupool.recompute.proxy.proxying import ProxyCore

LOOK_SECONDS: Final = 0.2
UNKNOWN_SECONDS: Final = 2.0
VIEW_SECONDS: Final = 10.0
_SHORTAGE_SECONDS: Final = 60.0
log = structlog.get_logger(__name__)


class NodeWatch:
    """Probes nodes when it is time; `run` goes on until cancelled."""

    def __init__(self, core: "ProxyCore", port: int) -> None:
        """``port`` is the one this proxy listens on."""
        self._core = core
        self._port = port
        self._asked: dict[str, float] = {}
        self._warned: set[str] = set()
        self._shortage_told = -_SHORTAGE_SECONDS
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look after all nodes until cancelled."""
        try:
            while True:
                self.look(self._core.clock())
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in list(self._tasks.values()):
                task.cancel()

    def look(self, now: float) -> None:
        """Begin the probes that are due."""
        due = {name for dispatcher in self._core.dispatchers for name in dispatcher.pool.due_probes(now)}
        for name, node in self._core.directory.nodes.items():
            asked = self._asked.get(name)
            since = UNKNOWN_SECONDS if not node.kinds or node.refused else VIEW_SECONDS
            knows = Kind.HTTP not in node.kinds and node.certain
            if name in due or asked is None or (not knows and now - asked >= since):
                self._begin(node, now)
        for name in self._asked.keys() - self._core.directory.nodes.keys():
            del self._asked[name]

    def _begin(self, node: Node, now: float) -> None:
        if node.name in self._tasks:
            return
        self._asked[node.name] = now
        self._warn_of_clear_token(node)
        task = asyncio.create_task(self._probe(node))
        self._tasks[node.name] = task
        task.add_done_callback(lambda _: self._tasks.pop(node.name, None))

    async def _probe(self, node: Node) -> None:
        if node.certain and node.kinds == {Kind.FRAMES}:
            well = await ask_frame(node, self._core.keyring)
            if well is None:
                self._name_shortage()
            else:
                self._tell(self._core.frames, node, well=well)
            return
        if await self._is_this_proxy(node):
            self._refuse(node, "it is this proxy itself")
            return
        finding = await ask_server(node, self._core.keyring)
        if finding.ours:
            self._name_shortage()
        else:
            self._learn(node, finding)

    def _name_shortage(self) -> None:
        """Say once a minute that servers cannot be reached for want of something here."""
        now = self._core.clock()
        if now - self._shortage_told >= _SHORTAGE_SECONDS:
            self._shortage_told = now
            log.warning(
                "no_connection_possible",
                why="this machine is out of files or memory",
                remedy="Raise the limit of open files (ulimit -n, or LimitNOFILE= of the unit), or lower --connections.",
            )

    def _warn_of_clear_token(self, node: Node) -> None:
        """Say once of a node that this proxy's token travels to it unencrypted."""
        trust = node.trust
        if trust.token_file is None or trust.tls or is_loopback(node.wish.host) or node.name in self._warned:
            return
        self._warned.add(node.name)
        log.warning(
            "token_in_clear",
            node=node.name,
            remedy="Whoever listens on the way can take the token: give the node tls, tls=CA_FILE or tls=sha256:HEX.",
        )

    def _learn(self, node: Node, finding: Finding) -> None:
        core = self._core
        if core.instance_id in finding.proxies:
            reason = "it is this proxy itself" if len(finding.proxies) == 1 else "it forwards to this proxy"
            self._refuse(node, reason)
            return
        if finding.view is not None:
            node.server_view = finding.view
        changed = node.proxies != finding.proxies or node.refused is not None
        if finding.reachable:
            node.proxies, node.refused = finding.proxies, None
            # A server of ours that hangs says nothing, as a Gigahorse server does; what it said before counts.
            silent = not finding.proxies and finding.kinds == {Kind.FRAMES} and Kind.HTTP in node.kinds
            if not silent and finding.kinds != node.kinds and not (node.certain and not finding.proxies):
                log.info("node_found", node=node.name, speaks=" ".join(sorted(finding.kinds)))
                node.kinds, changed = finding.kinds, True
            finding = finding if not silent else Finding(reachable=True, why="it does not answer")
        if not finding.reachable or not (finding.kinds or node.kinds):
            self._name_trouble(node, finding)
        if changed:
            core.nodes_changed()
        for dispatcher in core.dispatchers:
            if dispatcher.kind in node.kinds:
                self._tell(dispatcher, node, well=finding.well)

    def _name_trouble(self, node: Node, finding: Finding) -> None:
        """Say why a node is of no use now, again where the reason is another one than before."""
        why = finding.why if not finding.reachable else "it is a proxy, and no server behind it answers"
        if why != node.trouble:
            node.trouble = why
            log.warning("node_unreachable", node=node.name, why=why, remedy=finding.remedy)

    def _tell(self, dispatcher: Dispatcher, node: Node, *, well: bool) -> None:
        now = self._core.clock()
        if node.name in self._core.directory.nodes and dispatcher.kind in node.kinds:
            dispatcher.pool.probed(node.name, now, well)
            if well and node.trouble is not None:
                log.info("node_back", node=node.name)
                node.trouble = None
            dispatcher.pump(now)

    def _refuse(self, node: Node, why: str) -> None:
        if node.refused is None:
            log.error(
                "node_refused",
                node=node.name,
                why=why,
                remedy="Take it out of the list: requests would go round in a circle.",
            )
            node.refused = why
            self._core.nodes_changed()

    async def _is_this_proxy(self, node: Node) -> bool:
        if node.wish.port != self._port:
            return False
        try:
            async with asyncio.timeout(2):
                return is_ours(await addresses_of(node), self._core.settings.host)
        except (OSError, TimeoutError):
            return False


async def is_own_address(host: str, listening_on: str) -> bool:
    """Tell whether ``host`` names this machine, as far as a listener on ``listening_on`` would hear it."""
    try:
        async with asyncio.timeout(2):
            found = await asyncio.get_running_loop().getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        return False
    return is_ours({str(entry[4][0]) for entry in found}, listening_on)


def is_ours(found: Iterable[str], listening_on: str) -> bool:
    """Tell whether one of the addresses ``found`` is this machine's, and heard by a listener on ``listening_on``."""
    addresses = {address.partition("%")[0] for address in found}
    everywhere = listening_on in {"0.0.0.0", "::", ""}  # noqa: S104
    return any(_is_ours(address) and (everywhere or _same(address, listening_on)) for address in addresses)


def _same(address: str, listening_on: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address) == ipaddress.ip_address(listening_on)
    return listening_on == "localhost" and ipaddress.ip_address(address).is_loopback


def _is_ours(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
