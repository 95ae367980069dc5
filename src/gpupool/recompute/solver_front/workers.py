"""The servers behind the front: found, looked after, and used only if they have the farmers' release of chia_rs."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from pydantic import ValidationError

from gpupool.balancing import NodeLimits, NodeState, Pool
from gpupool.contracts.recompute import SolverView
from gpupool.recompute.proxy.nodes import Directory, Node
from gpupool.recompute.proxy.probing import ask_server
from gpupool.recompute.proxy.trust import Keyring
from gpupool.solvers.questions import MAINNET_K

LOOK_SECONDS: Final = 0.2
VIEW_SECONDS: Final = 5.0
"""Between two questions to a worker that is well for what it has."""
UNKNOWN_SECONDS: Final = 1.0
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Known:
    """What was learned of a node."""

    asked: float
    solver: SolverView | None = None
    why: str = "it has not answered yet"
    """Why it gets nothing; empty while it may."""


class Workers:
    """Keeps the pool to those nodes of the directory that can solve; `run` goes on until cancelled."""

    def __init__(
        self, directory: Directory, pool: Pool, keyring: Keyring, release: str, clock: Callable[[], float]
    ) -> None:
        self.directory, self._pool, self.keyring, self._release = directory, pool, keyring, release
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._told: dict[str, str] = {}
        directory.changed = self._renew

    def node(self, name: str) -> Node | None:
        """Return a node that is still wanted."""
        return self.directory.nodes.get(name)

    def able(self) -> dict[str, SolverView]:
        """Return what each node that can solve for these farmers says of itself."""
        return {
            name: known.solver
            for name, known in self._known.items()
            if known.solver is not None and not known.why and name in self.directory.nodes
        }

    def serving(self) -> list[str]:
        """Return those of them that answer, as far as is known."""
        views = self._pool.view(self._clock())
        return [view.name for view in views if view.state in {NodeState.LIVE, NodeState.STARTING}]

    def unable(self) -> dict[str, str]:
        """Return why each of the others gets nothing."""
        able = self.able()
        return {
            name: self._known[name].why if name in self._known else _Known(0.0).why
            for name in self.directory.nodes
            if name not in able
        }

    def told_seconds(self, k: int, strength: int) -> dict[str, float]:
        """Return how long each says that it takes; only mainnet's k has figures."""
        if k != MAINNET_K:
            return {}
        return {
            name: rate.seconds
            for name, solver in self.able().items()
            for rate in solver.rates
            if rate.strength == strength
        }

    async def run(self) -> None:
        """Look after all nodes until cancelled."""
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in list(self._tasks.values()):
                task.cancel()

    def look(self) -> None:
        """Begin the probes that are due."""
        now = self._clock()
        due = set(self._pool.due_probes(now))
        for name, node in self.directory.nodes.items():
            known = self._known.get(name)
            wait = VIEW_SECONDS if known is not None and not known.why else UNKNOWN_SECONDS
            if name not in self._tasks and (known is None or name in due or now - known.asked >= wait):
                task = self._tasks[name] = asyncio.create_task(self._probe(node))
                task.add_done_callback(partial(self._done, name))
        for name in self._known.keys() - self.directory.nodes.keys():
            del self._known[name]

    def _done(self, name: str, _: "asyncio.Task[None]") -> None:
        self._tasks.pop(name, None)

    async def _probe(self, node: Node) -> None:
        known = self._known.setdefault(node.name, _Known(self._clock()))
        known.asked = self._clock()
        finding = await ask_server(node, self.keyring)
        if finding.view is None:
            # What cannot be asked may still work, or soon again: the pool's own judgement decides.
            why = finding.why or "it does not answer as a recompute server does"
            self._say(node.name, why, finding.remedy)
            if known.solver is None:
                known.why = why
        else:
            known.solver, known.why = self._judge(finding.view)
            self._say(node.name, known.why, self._remedy(known))
        self._renew()
        if node.name in self.able():
            self._pool.probed(node.name, self._clock(), finding.view is not None)

    def _judge(self, view: dict[str, object]) -> tuple[SolverView | None, str]:
        if view.get("state") == "draining":
            return None, "it is stopping"
        if view.get("solver") is None:
            return (
                None,
                "it solves no v2 plots: chia_rs is not installed there, or it is older than this front",
            )
        try:
            solver = SolverView.model_validate(view["solver"])
        except ValidationError:
            return None, "what it says of its solver is not valid"
        if solver.chia_rs != self._release:
            return solver, f"it has chia_rs {solver.chia_rs}, and these farmers have {self._release}"
        if solver.state == "quarantined":
            return solver, f"its solver is out of use: {solver.why}"
        return solver, ""

    def _remedy(self, known: _Known) -> str | None:
        if known.solver is None or known.solver.chia_rs == self._release:
            return None
        return (
            f"Install chia_rs=={self._release} on that worker and restart its server, or give --chia-rs"
            f" {known.solver.chia_rs} here if all farmers have that release."
        )

    def _say(self, name: str, why: str, remedy: str | None) -> None:
        """Log what is wrong with a worker, and that it is not any more, once."""
        before = self._told.get(name)
        if why == (before or ""):
            return
        if why:
            self._told[name] = why
            log.warning("worker_unusable", worker=name, why=why, remedy=remedy)
        else:
            del self._told[name]
            log.info("worker_back", worker=name)

    def _renew(self) -> None:
        """Let the pool have exactly the nodes that can solve."""
        wishes = {name: self.directory.nodes[name].wish for name in self.able()}
        self._pool.set_nodes(
            {name: NodeLimits(wish.weight) for name, wish in wishes.items() if not wish.draining}
        )
