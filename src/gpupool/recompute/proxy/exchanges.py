"""One request on its way: who asked, until when an answer is of use, and which servers have been tried.

The two protocols differ in how a request is written and an answer judged; `FrameExchange` and the HTTP side's own
class say so. Everything else about failover is the same for both and lives in `dispatching`.
"""

from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from gpupool.recompute.proxy.nodes import Kind, Node

if TYPE_CHECKING:
    from gpupool.balancing import Ticket
    from gpupool.recompute.proxy.links import Link


class Judgement(Enum):
    """What an answer is worth."""

    GOOD = "good"
    BUSY = "busy"
    """The server is well but will not do it; another may."""
    BAD = "bad"
    """The server failed."""
    WRONG = "wrong"
    """The server answered with what cannot be an answer."""


class Asker(Protocol):
    """The client connection that waits."""

    peer: str

    def reply(self, exchange: "Exchange", answer: bytes) -> None:
        """Send the client its answer."""
        ...

    def give_up(self, exchange: "Exchange", why: str) -> None:
        """Tell the client that there will be none."""
        ...


class Attempt:
    """One request at one node."""

    __slots__ = ("answered", "exchange", "link", "node", "started", "ticket")

    def __init__(self, exchange: "Exchange", node: Node, ticket: "Ticket", started: float) -> None:
        self.exchange = exchange
        self.node = node
        self.ticket = ticket
        self.started = started
        self.link: Link | None = None
        self.answered: float | None = None
        """When its answer came; only the verdict on that is still waited for."""


class Exchange:
    """A request with its deadline (monotonic seconds).

    What stands above ``__init__`` is what nearly all requests end with as they began.
    """

    kind: ClassVar[Kind] = Kind.FRAMES
    open = True
    rounds = 0
    next_round = 0.0
    fault = ""
    """Why the last answer was none."""
    accused: tuple[tuple[str, str], ...] = ()
    """Nodes that answered wrong, and how: at fault only once another node has answered right."""
    suspects: tuple[str, ...] = ()
    """Nodes that closed the connection on this request: at fault only if another node answers it."""

    def __init__(self, asker: Asker, request_id: str, started: float, deadline: float, measure: str) -> None:
        self.refusers: frozenset[str] = frozenset()
        """Nodes that say that nobody can do it: believed once another says so too, or no other one is left to ask."""
        self.asker = asker
        self.id = request_id
        self.started = started
        self.deadline = deadline
        self.look_at = deadline
        """When its state may next be of interest to who watches the clock; 0 = always."""
        self.measure = measure
        """Requests of one measure are expected to take alike long on one node."""
        self.attempts: list[Attempt] = []
        self.tried: frozenset[str] = frozenset()
        self.tries = 0

    def encode(self, now: float, authorization: bytes = b"") -> bytes:
        """Return the bytes to send to a node, with the header line that brings this proxy's token."""
        raise NotImplementedError

    def judge(self, reply: object, node: Node) -> Judgement:
        """Tell what an answer is worth; may keep it as the one to give when no better comes."""
        raise NotImplementedError

    def answer(self, reply: object) -> bytes:
        """Return the bytes for the client."""
        raise NotImplementedError

    def settle(self, *, alone: bool) -> bytes | None:
        """Return what to tell the client when all nodes were tried and none was good; None: go on trying.

        ``alone``: none but the `refusers` is in service now.
        """
        return None

    def last_word(self) -> bytes | None:
        """Return what one of the `refusers` said, for when the time is over; None where there are none."""
        return None

    def evidence(self, reply: object) -> tuple[bytes, bytes, bytes] | None:
        """Return path, question and answer where the answer's content can be checked."""
        return None


class FrameExchange(Exchange):
    """A frame, passed on as it is."""

    def __init__(self, asker: Asker, request_id: str, started: float, deadline: float, frame: bytes) -> None:
        super().__init__(asker, request_id, started, deadline, "")
        self.frame = frame

    def encode(self, now: float, authorization: bytes = b"") -> bytes:
        """Return the frame."""
        return self.frame

    def judge(self, reply: object, node: Node) -> Judgement:
        """Its content is closed to us: every whole frame is an answer."""
        return Judgement.GOOD

    def answer(self, reply: object) -> bytes:
        """Return the frame that came."""
        return cast("bytes", reply)
