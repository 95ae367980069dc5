"""What an operator said about nodes by command, while the proxy ran: kept on disk before it is acknowledged.

A command counts more than any source: it adds a node that no source names, takes one out that a source names,
drains it, or gives it another weight or limit. `reset` makes the sources count again. What no command mentions stays
as its source says.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import structlog

from gpupool.core.errors import ConflictError, InvalidInputError, LimitReachedError, NotFoundError
from gpupool.core.files import read_json, remove_unfinished, write_private_json
from gpupool.recompute.addresses import format_address, parse_address
from gpupool.recompute.proxy.nodes import Directory, Kind, NodeWish
from gpupool.recompute.proxy.trust import Trust, trust_of

FILE: Final = "nodes.json"
SOURCE: Final = "command"
MOST_ORDERS: Final = 1024
MOST_WEIGHT: Final = 1000.0
MOST_SOCKETS: Final = 4096
_VERSION: Final = 1
MOST_WORDS: Final = 8
LONGEST_WORD: Final = 4096
_TAKES: Final = {
    "add": frozenset({"weight", "sockets", "kind", "trust"}),
    "weight": frozenset({"weight", "sockets"}),
}
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """All that commands have said about one node; None = nothing.

    Raises InvalidInputError where a value is out of its range.
    """

    added: bool = False
    removed: bool = False
    draining: bool = False
    weight: float | None = None
    sockets: int | None = None
    kind: str | None = None
    trust: tuple[str, ...] = ()
    """How it is reached, in the words of `trust.trust_of`; empty: as the proxy reaches every node."""

    def __post_init__(self) -> None:
        flags = (self.added, self.removed, self.draining)
        if not all(isinstance(flag, bool) for flag in flags):
            raise InvalidInputError("added, removed and draining are true or false.")
        if self.weight is not None and not (_is_number(self.weight) and 0 < self.weight <= MOST_WEIGHT):
            raise InvalidInputError(f"The weight is {self.weight}; it must be above 0 and at most 1000.")
        if self.sockets is not None and not (type(self.sockets) is int and 1 <= self.sockets <= MOST_SOCKETS):
            raise InvalidInputError(f"The sockets are {self.sockets}; they must be 1 to {MOST_SOCKETS}.")
        if self.kind is not None and self.kind not in list(Kind):
            raise InvalidInputError(f"The kind is {str(self.kind)[:40]!r}; it must be frames or http.")

    @classmethod
    def of(cls, given: Mapping[str, Any], **more: Any) -> "Order":
        """Return the order that JSON holds; errors as for the class."""
        words = given.get("trust", ())
        if not isinstance(words, list | tuple) or len(words) > MOST_WORDS:
            raise InvalidInputError(
                f"What is said about TLS and tokens is a list of {MOST_WORDS} words at most."
            )
        if not all(isinstance(word, str) and len(word) <= LONGEST_WORD for word in words):
            raise InvalidInputError(f"A word about TLS and tokens has {LONGEST_WORD} characters at most.")
        return cls(**{**given, "trust": tuple(words), **more})

    def over(self, wish: NodeWish, default: Trust) -> NodeWish:
        """Return a source's wish with what was said by command."""
        return replace(
            wish,
            weight=wish.weight if self.weight is None else float(self.weight),
            sockets=wish.sockets if self.sockets is None else self.sockets,
            kind=wish.kind if self.kind is None else Kind(self.kind),
            draining=wish.draining or self.draining,
            trust=trust_of(self.trust, default) if self.trust else wish.trust,
        )


class Orders:
    """All orders of one proxy."""

    def __init__(
        self, path: Path, directory: Directory, check: Callable[[Trust], None] = lambda trust: None
    ) -> None:
        """Take those kept at ``path``, and from now on hold ``directory`` to them.

        ``check`` raises an error of `core.errors` where the files that a node is reached with are of no use.
        """
        self._path = path
        self._check = check
        self._directory = directory
        self._changing = asyncio.Lock()
        self.orders: dict[str, Order] = {}
        directory.adjust = self._adjust
        self.read()

    def read(self) -> None:
        """Take what is kept: at the start, and when an earlier proxy of the same port has let go of it."""
        self.orders = {
            name: order for name, order in _read(self._path).items() if self._is_of_use(name, order)
        }
        self._apply()

    def _is_of_use(self, name: str, order: Order) -> bool:
        try:
            trust_of(order.trust, self._directory.default_trust)
        except InvalidInputError as error:
            log.warning("node_command_passed_over", node=name, why=error.message, remedy=error.remedy)
            return False
        return True

    def removed(self) -> list[str]:
        """Return the nodes that a source names and a command took out."""
        return [
            name for name, order in self.orders.items() if order.removed and self._directory.sources(name)
        ]

    async def change(self, action: str, node: str, given: Mapping[str, Any]) -> str:
        """Carry a command out and return the node's name once it is on disk.

        ``action``: add, remove, drain, undrain, weight or reset; ``given``: weight, sockets, kind, trust. Raises
        InvalidInputError, NotFoundError, ConflictError, LimitReachedError, or EnvironmentProblemError where it cannot
        be kept; nothing is changed then.
        """
        name = format_address(parse_address(node))
        async with self._changing:
            order = self._changed(action, name, given)
            if order.trust:
                self._check(trust_of(order.trust, self._directory.default_trust))
            orders = {key: value for key, value in self.orders.items() if key != name}
            if order != Order():
                orders[name] = order
            if len(orders) > MOST_ORDERS:
                raise LimitReachedError(f"There are commands about {MOST_ORDERS} nodes already.")
            kept = {"version": _VERSION, "orders": {key: asdict(value) for key, value in orders.items()}}
            await asyncio.to_thread(write_private_json, self._path, kept)
            self.orders = orders
            self._apply()
        log.info("node_changed", node=name, by="command", action=action, **given)
        return name

    def _changed(self, action: str, name: str, given: Mapping[str, Any]) -> Order:
        order = self.orders.get(name, Order())
        if unknown := given.keys() - _TAKES.get(action, frozenset()):
            raise InvalidInputError(f"{', '.join(sorted(unknown))[:200]} is not known here.")
        if action == "add":
            return self._added(name, given)
        known = name in self._directory.nodes or (action == "reset" and name in self.orders)
        if not known:
            raise NotFoundError(f"This proxy has no node {name}.", remedy=self._hint(name))
        if action == "undrain":
            return self._undrained(name, order)
        results = {
            "remove": Order(removed=True) if self._named_elsewhere(name) else Order(),
            "drain": replace(order, draining=True),
            "weight": replace(order, **given) if action == "weight" else order,
            "reset": Order(added=order.added and not self._named_elsewhere(name)),
        }
        if action not in results:
            raise InvalidInputError(f"{action[:40]!r} is nothing that can be done to a node.")
        return results[action]

    def _hint(self, name: str) -> str:
        """Return what to do about a node that is not there; one of its host under another port was meant, maybe."""
        host = parse_address(name)[0]
        others = [other for other in self._directory.nodes if parse_address(other)[0] == host]
        if not others:
            return "See `gpupool recompute nodes list`."
        return f"Name its port too: there is {', '.join(others[:4])}."

    def _added(self, name: str, given: Mapping[str, Any]) -> Order:
        if name in self._directory.nodes:
            raise ConflictError(
                f"The node {name} is there already, from {', '.join(self._directory.sources(name))}.",
                remedy="Change it with `gpupool recompute nodes weight`, or drain it.",
            )
        return Order.of(given, added=not self._named_elsewhere(name))

    def _undrained(self, name: str, order: Order) -> Order:
        source = next(iter(self._draining_sources(name)), None)
        if source is not None:
            raise ConflictError(
                f"The node {name} is drained by its source ({source}).", remedy="Change it there."
            )
        return replace(order, draining=False)

    def _draining_sources(self, name: str) -> list[str]:
        wishes = self._directory.wishes_for(name)
        return [source for source, wish in wishes.items() if source != SOURCE and wish.draining]

    def _named_elsewhere(self, name: str) -> bool:
        return any(source != SOURCE for source in self._directory.sources(name))

    def _apply(self) -> None:
        wishes = []
        for name, order in self.orders.items():
            if order.added:
                host, port = parse_address(name)
                wishes.append(NodeWish(host, port))
        self._directory.replace(SOURCE, wishes)

    def _adjust(self, wanted: dict[str, NodeWish]) -> dict[str, NodeWish]:
        return {
            name: wish
            if (order := self.orders.get(name)) is None
            else order.over(wish, self._directory.default_trust)
            for name, wish in wanted.items()
            if name not in self.orders or not self.orders[name].removed
        }


def _read(path: Path) -> dict[str, Order]:
    """Return the orders kept at ``path``; a file that is none is put aside and told, and lookups go on."""
    remove_unfinished(path)
    if not path.exists():
        return {}
    try:
        return _orders_of(read_json(path))
    except (InvalidInputError, AttributeError, KeyError, TypeError, OSError) as error:
        aside = path.with_suffix(".unreadable")
        with suppress(OSError):  # it stays where it is, and is told at each start
            path.replace(aside)
        log.warning(
            "node_commands_put_aside",
            path=str(path if path.exists() else aside),
            why=str(error),
            remedy="Give the commands again; until then only the proxy's other sources count.",
        )
        return {}


def _orders_of(kept: Any) -> dict[str, Order]:
    if not isinstance(kept, dict) or kept.get("version") != _VERSION:
        raise InvalidInputError("it is no list of commands of this version")
    known = {field.name for field in fields(Order)}
    return {
        format_address(parse_address(name)): Order.of({key: row[key] for key in known & row.keys()})
        for name, row in list(kept["orders"].items())[:MOST_ORDERS]
    }


def _is_number(value: object) -> bool:
    return type(value) in {int, float}
