"""Control and an agent as real processes, messages through Apprise to a real receiver: who dies is told, and who returns."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from gpupool.cli.alerts import app
from gpupool.core.errors import GpupoolError
from gpupool.core.files import write_private
from light_pool import LightPool
from polling import eventually
from receiver import Receiver

SECRET = "SeCrEtToKeN42"
FILE = """
targets:
  - name: ops
    apprise: json://127.0.0.1:{port}/{secret}
group_seconds: 0.2
distance_seconds: 0
holds: {{node_silent: 0.5}}
control_silent_minutes: 0.05
"""


class Place:
    """A pool and whoever it tells."""

    def __init__(self, pool: LightPool, receiver: Receiver) -> None:
        self.pool, self.receiver = pool, receiver

    def kill_agent(self) -> None:
        """End the agent without a word, and let nobody start it again."""
        self.pool.agent.kill()
        self.pool.agent.process = None

    async def heard(self, title: str, times: int = 1) -> None:
        """Wait until a message has come so often."""
        try:
            await eventually(lambda: self.receiver.titles.count(title) >= times, what=title)
        except AssertionError as error:
            error.add_note(f"heard: {self.receiver.titles}\n{self.pool.logs()}")
            raise

    async def alerts(self, *arguments: str) -> tuple[int, str]:
        """Run ``gpupool alerts`` in a thread, since the receiver must go on; return exit code and what it printed."""
        env = {name: self.pool.control.env[name] for name in ("GPUPOOL_HOME", "GPUPOOL_CONTROL_URL")}
        env["GPUPOOL_ALERT_URLS"] = f"json://127.0.0.1:{self.receiver.port}/{SECRET}"
        ran = await asyncio.to_thread(CliRunner().invoke, app, list(arguments), env=env)
        fault = ran.exception
        told = f"{ran.output}{fault.message if isinstance(fault, GpupoolError) else ''}"
        assert SECRET not in told
        return (fault.exit_code if isinstance(fault, GpupoolError) else ran.exit_code), told

    async def told(self) -> bool:
        """Tell whether control knows that its last message was taken."""
        found = (await self.pool.get("/v1/alerts"))["deliveries"]
        return bool(found) and found[-1]["outcome"] == "taken"

    async def alarms(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.pool.get("/v1/alerts"))["alarms"]
        return found


@pytest_asyncio.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    pool = LightPool(tmp_path, GPUPOOL_CONTROL_SILENCE_SECONDS="2")
    async with Receiver() as receiver, pool:
        pool.home.prepare()
        write_private(pool.home.root / "alerts.yaml", FILE.format(port=receiver.port, secret=SECRET))
        yield Place(pool, receiver)
    for log in (pool.control.log, pool.agent.log):
        assert not log.exists() or SECRET not in log.read_text()


async def test_an_agent_that_dies_is_told_and_so_is_its_return(place: Place) -> None:
    pool, receiver = place.pool, place.receiver
    await pool.start()
    place.kill_agent()
    await place.heard("node silent: tested")
    await eventually(place.told, what="the delivery noted")
    code, listed = await place.alerts("list", "--json")
    assert code == 5, listed
    found = json.loads(listed)
    assert [(alarm["rule"], alarm["label"], alarm["severity"]) for alarm in found["alarms"]] == [
        ("node_silent", "tested", "critical")
    ]
    assert found["targets"] == [{"name": "ops", "kind": "apprise json", "least": "warning", "waiting": 0}]
    assert found["deliveries"][-1]["outcome"] == "taken"
    assert "node silent" in (await place.alerts("list"))[1]
    pool.agent.start()
    await place.heard("over: node silent: tested")
    assert receiver.titles == ["node silent: tested", "over: node silent: tested"]

    async def forgotten() -> bool:
        return not await place.alarms()

    await eventually(forgotten, what="the end of the alarm")
    code, listed = await place.alerts("list")
    assert (code, "nothing is wrong" in listed) == (0, True)
    kinds = [event["kind"] for event in await pool.get("/v1/events?limit=1000")]
    assert [kind for kind in kinds if kind.startswith("alarm")] == ["alarm.raised", "alarm.over"]


async def test_an_agent_tells_of_controls_death_and_control_of_nothing_it_slept_through(place: Place) -> None:
    pool, receiver = place.pool, place.receiver
    await pool.start()
    pool.control.kill()
    await place.heard("control cannot be reached")
    event = receiver.got[0]
    assert "tested has not reached control" in event["message"]
    pool.control.start()
    await place.heard("over: control cannot be reached")
    assert receiver.titles == ["control cannot be reached", "over: control cannot be reached"]
    await eventually(lambda: not (pool.home.agent / "deadman.json").exists(), what="nothing more to tell")


@pytest.mark.slow  # two deaths of control, each with the silence that a start keeps
async def test_a_control_that_dies_as_it_raises_or_ends_an_alarm_tells_it_once(place: Place) -> None:
    pool = place.pool
    await pool.start()
    place.kill_agent()
    await dies_at(pool, "control.alarm.raised.after")
    await place.heard("node silent: tested")
    await eventually(place.told, what="the delivery noted")
    pool.agent.start()
    await dies_at(pool, "control.alarm.over.after")
    await place.heard("over: node silent: tested")
    await eventually(place.told, what="the delivery noted")
    about_the_node = [title for title in place.receiver.titles if "node" in title]
    assert about_the_node == ["node silent: tested", "over: node silent: tested"]


async def dies_at(pool: LightPool, point: str) -> None:
    """Let control die at a point, and start it again."""
    pool.failpoint.write_text(point)
    await eventually(lambda: not pool.failpoint.exists(), what=f"a death at {point}")
    await pool.control.ended()
    pool.control.start()


async def test_a_test_tells_how_it_went_with_and_without_control(place: Place) -> None:
    pool, receiver = place.pool, place.receiver
    assert (await place.alerts("test", "--here"))[0] == 0
    pool.control.start()
    await pool.until(lambda: pool.try_once("GET", "/readyz"), "control")
    assert (await place.alerts("test", "--to", "ops"))[0] == 0
    assert receiver.titles == ["test"] * 3
    receiver.status = 500
    for more in ([], ["--here"]):
        code, told = await place.alerts("test", "--to", "ops", *more)
        assert (code, "not taken" in told) == (1, True)
        assert (await place.alerts("test", "--to", "nobody", *more))[0] == 4


@pytest.mark.parametrize("fault", ["aprise", "mode"])
async def test_a_wrong_file_stops_the_start_with_words_and_without_the_secret(
    place: Place, fault: str
) -> None:
    path = place.pool.home.root / "alerts.yaml"
    if fault == "mode":
        path.chmod(0o644)
    else:
        write_private(path, path.read_text().replace("apprise", "aprise"))
    members = (place.pool.control, place.pool.agent)
    for member in members:
        member.start()
    for member in members:
        assert await member.ended() in {2, 3}
        assert "alerts.yaml" in member.log.read_text()
