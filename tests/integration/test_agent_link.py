"""The link under everything that networks and controls do: it mends itself, and nothing is told twice or lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import pytest_asyncio

from agent_process import start_order
from fake_runtime import FakeRuntime
from gpupool.agent import link as link_module
from gpupool.agent.client import ControlClient
from gpupool.agent.inventory import Inventory
from gpupool.agent.journal import Journal
from gpupool.agent.link import Link
from gpupool.agent.settings import AgentSettings
from gpupool.agent.worker import Worker
from gpupool.core.keys import SigningKey
from gpupool.fleet.placements import PlacementState
from gpupool.fleet.ports.runtime import InstanceState
from polling import eventually
from scripted_control import ScriptedControl


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the agent try again at once."""
    monkeypatch.setattr("gpupool.agent.backoff.FIRST_SECONDS", 0.01)
    monkeypatch.setattr("gpupool.agent.backoff.MOST_SECONDS", 0.05)
    monkeypatch.setattr(link_module, "COALESCE_SECONDS", 0.01)


@pytest_asyncio.fixture
async def control() -> AsyncIterator[ScriptedControl]:
    """A control of this test's own."""
    async with ScriptedControl() as made:
        yield made


class Node:
    """An agent without a process of its own, on a runtime that runs nothing."""

    def __init__(self, folder: Path, token: str) -> None:
        self.folder = folder
        self.runtime = FakeRuntime()
        (folder / "token").write_text(token)

    @asynccontextmanager
    async def linked(self, url: str, heartbeat: float = 5.0, timeout: float = 10.0) -> AsyncIterator[Worker]:
        """Keep it linked to ``url`` for a while."""
        settings = AgentSettings(
            home=self.folder, control_url=url, node_name="tested", join_token_file=self.folder / "token"
        )
        worker = Worker(self.runtime, Journal.load(self.folder / "journal.json"), Inventory(()))
        await worker.resume()
        async with ControlClient(url, SigningKey.load_or_make(self.folder / "key"), timeout) as client:
            self.link = Link(settings, client, worker, heartbeat)
            self.task = asyncio.create_task(self.link.run())
            try:
                yield worker
            finally:
                await self.unlink()

    async def unlink(self) -> None:
        """End the link, as the agent does before it says goodbye."""
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


@pytest.fixture
def node(tmp_path: Path, control: ScriptedControl) -> Node:
    return Node(tmp_path, control.token)


def is_active(control: ScriptedControl, name: str) -> Callable[[], bool]:
    return lambda: control.state(name) is PlacementState.ACTIVE


async def test_every_connect_begins_with_everything(control: ScriptedControl, node: Node) -> None:
    node.runtime.show("pl-a", InstanceState.HEALTHY)
    async with node.linked(control.url):
        await eventually(lambda: control.streams == 1)
        control.break_streams()
        await eventually(lambda: control.streams == 2)
    complete = [report for report in control.reports if report.complete]
    assert len(complete) == 2
    assert len({report.session for report in complete}) == 2
    for report in complete:
        assert [item.placement_id for item in report.placements] == ["pl-a"]
        assert report.devices == []
    assert len(control.joins) == 1


async def test_a_heartbeat_says_nothing(control: ScriptedControl, node: Node) -> None:
    node.runtime.show("pl-a", InstanceState.HEALTHY)
    async with node.linked(control.url, heartbeat=0.02):
        await eventually(lambda: len(control.reports) >= 4)
    beat = control.reports[3]
    assert (beat.complete, beat.devices, beat.placements, beat.acknowledged) == (False, None, [], None)


async def test_changes_that_come_together_go_into_one_report(
    control: ScriptedControl, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "COALESCE_SECONDS", 0.2)
    async with node.linked(control.url, heartbeat=600):
        await eventually(lambda: control.streams)
        for number in range(20):
            node.runtime.show(f"pl-{number}", InstanceState.HEALTHY)
        await eventually(lambda: len(control.placements) == 20)
    assert len(control.reports) == 2


async def test_a_command_is_acknowledged_once_kept(control: ScriptedControl, node: Node) -> None:
    control.order("start", start_order("pl-a"))
    async with node.linked(control.url):
        await eventually(lambda: not control.commands)
    assert Journal.load(node.folder / "journal.json").last_seq == 1
    told = {report.acknowledged for report in control.reports}
    assert 1 in told


async def test_a_lost_answer_is_asked_for_again_and_taken_in_once(
    control: ScriptedControl, node: Node
) -> None:
    async with node.linked(control.url):
        await eventually(lambda: control.streams)
        control.fail_reports = 2
        node.runtime.show("pl-a", InstanceState.EXITED, reason="exit: code 1")
        await eventually(lambda: node.runtime.forgotten)
    assert [item.placement_id for report in control.reports for item in report.placements] == ["pl-a"]
    assert control.streams == 1


async def test_a_control_that_fails_for_long_gets_everything_when_it_is_back(
    control: ScriptedControl, node: Node
) -> None:
    async with node.linked(control.url):
        await eventually(lambda: control.streams)
        control.fail_reports = 9
        node.runtime.show("pl-a", InstanceState.HEALTHY)
        await eventually(lambda: control.streams >= 2)
        await eventually(is_active(control, "pl-a"))


async def test_a_forgotten_session_is_told_anew(control: ScriptedControl, node: Node) -> None:
    async with node.linked(control.url, heartbeat=0.05):
        await eventually(lambda: control.streams)
        control.forget_session = True
        await eventually(lambda: control.streams == 2)
    assert sum(report.complete for report in control.reports) == 2


async def test_a_control_that_accepts_and_stays_silent_is_given_up(
    control: ScriptedControl, node: Node
) -> None:
    control.silent = True
    async with node.linked(control.url, timeout=0.5):
        await eventually(lambda: len(control.joins) >= 1)
        assert control.streams == 0
        control.silent = False
        await eventually(lambda: control.streams)


async def test_a_silent_stream_is_given_up(
    control: ScriptedControl, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupool.agent.client.KEEPALIVE_SECONDS", 0.05)
    async with node.linked(control.url):
        await eventually(lambda: control.streams >= 3)


async def test_it_waits_for_a_control_that_is_not_there_yet(
    control: ScriptedControl, node: Node, free_port: int
) -> None:
    async with node.linked(f"http://127.0.0.1:{free_port}"):
        late = ScriptedControl(free_port)
        late.token = control.token
        async with late:
            await eventually(lambda: late.streams)


async def test_a_control_without_memory_is_joined_again_and_old_placements_end(
    control: ScriptedControl, node: Node
) -> None:
    control.order("start", start_order("pl-a"))
    async with node.linked(control.url):
        await eventually(lambda: not control.commands)
        control.another_pool()
        control.break_streams()
        await eventually(lambda: len(control.joins) == 2)
        control.order("start", start_order("pl-b"))
        await eventually(lambda: control.state("pl-b"))
    assert "pl-a" not in control.placements
    assert ("pl-a", 5.0) in node.runtime.stops


async def test_a_node_that_joined_once_needs_no_token(control: ScriptedControl, node: Node) -> None:
    async with node.linked(control.url):
        await eventually(lambda: control.streams)
    (node.folder / "token").unlink()
    async with node.linked(control.url):
        await eventually(lambda: control.streams == 2)
    assert len(control.joins) == 1


async def test_a_wrong_token_is_said_and_tried_again(control: ScriptedControl, node: Node) -> None:
    right = (node.folder / "token").read_text()
    (node.folder / "token").write_text("wrong")
    async with node.linked(control.url):
        (node.folder / "token").write_text(right)
        await eventually(lambda: control.streams)


async def test_a_goodbye_is_complete_and_forgets_what_it_told(control: ScriptedControl, node: Node) -> None:
    node.runtime.show("pl-a", InstanceState.HEALTHY)
    async with node.linked(control.url) as worker:
        await eventually(lambda: control.streams)
        await worker.leave(5.0, asyncio.Event())
        await node.unlink()
        assert await node.link.say_goodbye()
    assert control.reports[-1].leaving
    assert control.state("pl-a") is PlacementState.ENDED
    assert node.runtime.known == {}


async def test_without_a_link_there_is_no_goodbye(node: Node, free_port: int) -> None:
    async with node.linked(f"http://127.0.0.1:{free_port}"):
        assert not await node.link.say_goodbye()


ANSWERS = {
    "closes": b"",
    "is no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "is another web server": b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n<html>404",
    "says yes to everything": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine",
    "sends elsewhere": b"HTTP/1.1 302 Found\r\nLocation: https://example.invalid/\r\nContent-Length: 0\r\n\r\n",
    "fails": b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("what", ANSWERS)
async def test_a_wrong_address_is_tried_again_until_control_is_there_and_costs_no_work(
    control: ScriptedControl, node: Node, what: str
) -> None:
    node.runtime.show("pl-a", InstanceState.HEALTHY)
    calls = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        await reader.read(1)
        writer.write(ANSWERS[what])
        writer.close()

    wrong = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = wrong.sockets[0].getsockname()[1]
    async with node.linked(f"http://127.0.0.1:{port}"):
        await eventually(lambda: calls >= 4)
        assert not node.task.done()
        assert node.runtime.stops == []
        wrong.close()
        late = ScriptedControl(port)
        late.token = control.token
        async with late:
            await eventually(is_active(late, "pl-a"))


async def test_a_name_that_is_no_machine_ends_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    def soon(_: object, _spread: float = 0.0) -> float:
        nonlocal tries
        tries += 1
        return 0.01

    monkeypatch.setattr("gpupool.agent.backoff.Backoff.next", soon)
    async with node.linked("http://no-such-machine.invalid:32000"):
        await eventually(lambda: tries >= 3)
        assert not node.task.done()


async def test_a_removed_node_ends_its_work_and_comes_back_when_it_is_let_in_again(
    control: ScriptedControl, node: Node
) -> None:
    control.order("start", start_order("pl-a"))
    async with node.linked(control.url):
        await eventually(lambda: control.state("pl-a"))
        control.removed = True
        control.break_streams()
        await eventually(lambda: node.runtime.known == {})
        assert node.runtime.stops == [("pl-a", 5.0)]
        assert not node.task.done()
        control.another_pool()
        control.removed = False
        await eventually(lambda: len(control.joins) == 2)
        control.order("start", start_order("pl-b"))
        await eventually(lambda: control.state("pl-b"))
    journal = Journal.load(node.folder / "journal.json")
    assert set(journal.wanted) == {"pl-b"}
