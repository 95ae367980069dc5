"""The connections of farmers: let in, greeted, listened to, and answered, each within its limits."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from gpupool import __version__
from gpupool.recompute.solver_front.wire import (
    MESSAGE_LIMIT,
    Handshake,
    Kind,
    Message,
    NodeType,
    Solution,
    Solve,
    WireError,
)

HANDSHAKE_SECONDS: Final = 10.0
HEARTBEAT_SECONDS: Final = 30.0
MOST_CONNECTIONS: Final = 256
MOST_OF_ONE: Final = 8
"""Connections with one node id: a farmer that lost one, or several that share a certificate."""
REFUSAL_SECONDS: Final = 1.0
"""A connection that ends so soon after an answer ended because of it."""
KEPT_SECONDS: Final = 20.0
"""For which an answer waits for a farmer that has gone; it is of no use later."""
MOST_QUESTIONS: Final = 64
"""Of one connection that wait for an answer; the next one is not taken."""
CLOSE_SECONDS: Final = 2.0
_PROTOCOL: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}")
log = structlog.get_logger(__name__)


class GreetingError(Exception):
    """The other side is no farmer of this network, or does not greet."""


@dataclass(slots=True, eq=False)
class Farmer:
    """One connection."""

    node_id: str
    host: str
    socket: web.WebSocketResponse
    software: str = ""
    waiting: int = 0
    """Its questions that are not answered yet."""
    answered: int = 0
    answered_at: float = float("-inf")

    @property
    def name(self) -> str:
        """What log lines call it."""
        return f"{self.node_id[:16]} ({self.host})"

    async def send(self, message: Message) -> bool:
        """Send; False where the connection is gone."""
        if self.socket.closed:
            return False
        try:
            await self.socket.send_bytes(message.encode())
        except ConnectionError:
            return False
        return True


@dataclass(slots=True)
class Farmers:
    """All connections, and answers for farmers that have none just now."""

    network: str
    port: int
    """That the front listens on, as the handshake tells it."""
    clock: Callable[[], float]
    connected: list[Farmer] = field(default_factory=list)
    kept: list[tuple[str, Message, float]] = field(default_factory=list)
    """Node id, answer, and until when it is of use."""

    def has_room(self, node_id: str) -> bool:
        """Tell whether another connection of a node may come in."""
        of_one = sum(farmer.node_id == node_id for farmer in self.connected)
        return len(self.connected) < MOST_CONNECTIONS and of_one < MOST_OF_ONE

    async def serve(self, farmer: Farmer, take: Callable[[Farmer, Message, Solve], None]) -> None:
        """Greet and listen until the connection ends; ``take`` gets each question."""
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await self._greet(farmer)
        except (GreetingError, WireError, TimeoutError) as error:
            why = str(error) or f"it did not greet within {HANDSHAKE_SECONDS:g} s"
            log.warning("farmer_not_understood", farmer=farmer.name, node_id=farmer.node_id, why=why)
            await farmer.socket.close(code=WSCloseCode.PROTOCOL_ERROR)
            return
        self.connected.append(farmer)
        log.info("farmer_connected", farmer=farmer.name, node_id=farmer.node_id, software=farmer.software)
        try:
            await self._hand_over(farmer)
            await self._listen(farmer, take)
        finally:
            self.connected.remove(farmer)
            self._tell_if_refused(farmer)
            log.info("farmer_left", farmer=farmer.name, answered=farmer.answered, waiting=farmer.waiting)

    async def answer(self, farmer: Farmer, asked: Message, solution: Solution) -> bool:
        """Send an answer to whoever asked, or to the same node where it has connected anew.

        False: it is gone; the answer is kept for a while, should it come back.
        """
        message = Message(Kind.SOLUTION, asked.number, solution.encode())
        same = [other for other in self.connected if other.node_id == farmer.node_id and other is not farmer]
        for receiver in (farmer, *reversed(same)):
            if await self._send(receiver, message):
                return True
        self._forget()
        if len(self.kept) < MOST_CONNECTIONS:
            self.kept.append((farmer.node_id, message, self.clock() + KEPT_SECONDS))
        return False

    async def close(self) -> None:
        """Say goodbye to everybody."""
        await asyncio.gather(
            *(farmer.socket.close(code=WSCloseCode.GOING_AWAY) for farmer in list(self.connected)),
            return_exceptions=True,
        )

    def _tell_if_refused(self, farmer: Farmer) -> None:
        """Say so where a farmer breaks off over an answer, since it says nothing itself."""
        if self.clock() - farmer.answered_at < REFUSAL_SECONDS:
            log.error(
                "answer_not_taken",
                farmer=farmer.name,
                software=farmer.software,
                what_to_do="The farmer ended the connection as soon as it was answered. Chia 2.7.5 does that with every"
                " solver, by a fault of its own: look for solution_response() in its debug.log, and take a later release.",
            )

    async def _hand_over(self, farmer: Farmer) -> None:
        """Send what was found while a farmer was away."""
        self._forget()
        for entry in [entry for entry in self.kept if entry[0] == farmer.node_id]:
            if await self._send(farmer, entry[1]):
                self.kept.remove(entry)

    async def _send(self, farmer: Farmer, answer: Message) -> bool:
        if not await farmer.send(answer):
            return False
        farmer.answered += 1
        farmer.answered_at = self.clock()
        return True

    def _forget(self) -> None:
        now = self.clock()
        self.kept[:] = [entry for entry in self.kept if entry[2] > now]

    async def _greet(self, farmer: Farmer) -> None:
        message = await _received(farmer)
        if message is None:
            raise GreetingError("it left without a greeting")
        if message.kind != Kind.HANDSHAKE:
            raise GreetingError(f"its first message is of kind {message.kind} instead of a handshake")
        heard = Handshake.decode(message.body)
        if heard.node_type != NodeType.FARMER:
            raise GreetingError(
                f"it is a node of type {heard.node_type}, and only farmers (3) have questions"
            )
        if heard.network != self.network:
            raise GreetingError(
                f"its network is {heard.network[:60]!r}, and this front serves {self.network!r}"
            )
        if not _PROTOCOL.fullmatch(heard.protocol):
            raise GreetingError(f"{heard.protocol[:40]!r} is no version of the protocol")
        farmer.software = "".join(letter for letter in heard.software[:60] if letter.isprintable())
        # A farmer compares the version with its own.
        ours = Handshake(self.network, heard.protocol, f"gpupool-{__version__}", self.port, NodeType.SOLVER)
        await farmer.send(Message(Kind.HANDSHAKE, message.number, ours.encode()))

    async def _listen(self, farmer: Farmer, take: Callable[[Farmer, Message, Solve], None]) -> None:
        try:
            while (message := await _received(farmer)) is not None:
                if message.kind == Kind.ERROR:
                    log.warning("farmer_told_an_error", farmer=farmer.name)
                else:
                    take(farmer, message, _question(message))
        except WireError as error:
            log.warning("farmer_not_understood", farmer=farmer.name, node_id=farmer.node_id, why=str(error))
            await farmer.socket.close(code=WSCloseCode.PROTOCOL_ERROR)


def _question(message: Message) -> Solve:
    if message.kind != Kind.SOLVE:
        raise WireError(f"messages of kind {message.kind} are not for a solver")
    return Solve.decode(message.body)


async def _received(farmer: Farmer) -> Message | None:
    """Return the next message, None at the end of the connection; raises WireError."""
    message = await farmer.socket.receive()
    if message.type is WSMsgType.BINARY:
        return Message.decode(message.data)
    if message.type in {WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED}:
        return None
    if message.type is WSMsgType.ERROR:
        raise WireError(f"it is too long (more than {MESSAGE_LIMIT} bytes) or no websocket message")
    raise WireError("it is text, and only bytes are understood")
