"""Adding nodes: the line to paste on the machine, and waiting until it has joined."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from gpupool.cli.overview import node_gpus, node_notes, node_state
from gpupool.contracts.join_command import join_command
from gpupool.contracts.nodes import InviteRequest
from gpupool.contracts.problems import describe
from gpupool.core.errors import ConflictError, DeadlineError, InvalidInputError
from gpupool.fleet.nodes import NodeState

if TYPE_CHECKING:
    from gpupool.contracts.control import NodeView
    from gpupool.contracts.control_client import ControlClient

M = TypeVar("M", bound=BaseModel)
_LOOK_SECONDS: Final = 5.0


def invite_all(
    client: "ControlClient", wishes: Sequence[dict[str, Any]], url: str, *, raise_refusals: bool
) -> list[dict[str, Any]]:
    """Mint a token for each wish and return the results as JSON says them: what was minted with its command, or why not.

    Raises InvalidInputError for the first wish that is not valid, ConflictError for a refused one if asked to.
    """
    results: list[dict[str, Any]] = []
    for wish in wishes:
        fields = {key: value for key, value in wish.items() if key != "address"}
        try:
            reply = client.invite(checked(InviteRequest, fields))
        except ConflictError as error:
            if raise_refusals:
                raise
            results.append({"name": wish["name"], "refused": error.message, "remedy": error.remedy})
        else:
            command = join_command(reply.token, reply.name, url, wish["address"])
            results.append({**reply.model_dump(mode="json"), "command": command})
    return results


def checked(kind: type[M], values: Mapping[str, Any]) -> M:
    """Return a message of this kind; raise InvalidInputError in words where the values do not fit it."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise InvalidInputError(f"{describe(error)}.") from error


def print_invited(results: Sequence[dict[str, Any]], *, one: bool, say: Callable[[str], None]) -> None:
    """Print a line a node; of one node the line alone, so that it can be copied, and the rest through ``say``."""
    for result in results:
        if one:
            machines = f"{result['uses']} machines" if result["uses"] > 1 else "one machine"
            until = result["expires_at"][:16].replace("T", " ")
            say(f"Good for {machines} until {until} UTC; run this there:")
            typer.echo(result["command"])
        else:
            typer.echo(f"{result['name']}: {result.get('command') or 'refused: ' + result['refused']}")


def wait_ready(
    client: "ControlClient", names: Sequence[str], timeout: float, say: Callable[[str], None]
) -> list["NodeView"]:
    """Return the nodes once all of these names are ready; ``say`` what goes on.

    Raises DeadlineError, naming those that are not there, after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    told = dict.fromkeys(names, "")
    seen = client.pool().last_event_seq
    while True:
        nodes = {node.name: node for node in client.nodes() if node.name in told}
        for name, last in told.items():
            news = _progress(nodes.get(name))
            if news != last:
                say(f"{name}: {news}")
                told[name] = news
        missing = [name for name in names if name not in nodes or nodes[name].state is not NodeState.READY]
        if not missing:
            return [nodes[name] for name in names]
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlineError(
                f"Not there after {timeout:g} s: {'; '.join(f'{name} ({told[name]})' for name in missing)}.",
                remedy="Look at what the agent says on that machine; its token stays good, and"
                " `gpupool node list` shows it once it has joined.",
            )
        news_of_pool = client.events(after=seen, limit=1000, wait=min(left, _LOOK_SECONDS))
        seen = max([seen, *(event.seq for event in news_of_pool)])


def _progress(node: "NodeView | None") -> str:
    if node is None:
        return "waiting for its agent"
    if node.state is not NodeState.READY:
        return f"{node_state(node)}, joined from {node.address}"
    return f"ready with {node_gpus(node) or 'no GPU'}" + (f"; {note}" if (note := node_notes(node)) else "")
