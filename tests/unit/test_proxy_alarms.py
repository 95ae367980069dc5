"""When somebody is told what: rules, how long a trouble must last, grouping, distance, and recovery notes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gpupool.core.errors import BusyError
from gpupool.notify.hooks import HookError
from gpupool.recompute.proxy import alarms as module
from gpupool.recompute.proxy.alarms import DISTANCE_SECONDS, GROUP_SECONDS, HOLDS, Alarms, Event, Outbox
from gpupool.recompute.proxy.alert_rules import (
    CLIENT_SILENT,
    CONTROL_LOST,
    HARVESTER_LOST,
    LOOKUPS_LOST,
    NO_NODE,
    NODE_DOWN,
    NODE_SLOW,
    Troubles,
    troubles,
)
from gpupool.recompute.proxy.alerting import MOST_WAITING, Alerting
from gpupool.recompute.proxy.main import _jobs
from gpupool.recompute.proxy.proxying import ProxyCore
from gpupool.recompute.proxy.settings import ProxySettings
from polling import eventually

DOWN = {(NODE_DOWN, "a"): "ejected: silent"}


def row(name: str, state: str = "live", p50: float | None = 10.0, **changes: Any) -> dict[str, Any]:
    base = {"name": name, "state": state, "why": "", "kinds": ["frames"], "p50_ms": p50}
    return {**base, "slow": False, "draining": False, "answered": 100, **changes}


def told(*nodes: dict[str, Any], **more: Any) -> set[tuple[str, str]]:
    given = {"kinds": set[str](), "silent": {}, "lost": 0, "harvesters": {}, **more}
    return set(troubles(list(nodes), **given))


def test_nothing_is_wrong_where_all_is_well() -> None:
    assert told(row("a"), row("b", "starting"), row("c", "draining", draining=True)) == set()


@pytest.mark.parametrize("state", ["ejected", "quarantined", "refused", "unreachable"])
def test_a_node_that_fails_is_down_unless_it_is_drained(state: str) -> None:
    assert told(row("a"), row("b", state)) == {(NODE_DOWN, "b")}
    assert told(row("a"), row("b", state, draining=True)) == set()


def test_slow_is_slower_than_it_was_or_far_slower_than_its_peers() -> None:
    assert told(row("a"), row("b", slow=True)) == {(NODE_SLOW, "b")}
    assert told(row("a"), row("b"), row("c", p50=101.0)) == {(NODE_SLOW, "c")}
    assert told(row("a"), row("b"), row("c", p50=99.0)) == set()
    assert told(row("a"), row("b"), row("c", p50=101.0, answered=3)) == set()
    assert told(row("a"), row("b"), row("c", p50=101.0, kinds=["http"])) == set()
    assert told(row("a", p50=None), row("b", p50=500.0)) == set()


def test_a_protocol_without_a_node_is_told_even_where_another_has_some() -> None:
    assert told(row("a"), kinds={"http"}) == {(NO_NODE, "http")}
    assert told(row("a", "ejected")) == {(NODE_DOWN, "a"), (NO_NODE, "frames")}
    assert told(row("a", "draining", draining=True)) == {(NO_NODE, "frames")}
    assert told() == {(NO_NODE, "any")}


def test_silent_clients_and_lost_lookups_are_told() -> None:
    assert told(row("a"), silent={"10.0.0.1": 700.0}, lost=3) == {
        (CLIENT_SILENT, "10.0.0.1"),
        (LOOKUPS_LOST, "proxy"),
    }


def test_every_rule_has_its_hold() -> None:
    named = {NODE_DOWN, NODE_SLOW, NO_NODE, CLIENT_SILENT, LOOKUPS_LOST, HARVESTER_LOST, CONTROL_LOST}
    assert set(HOLDS) == named


def test_a_control_that_does_not_answer_is_told_after_minutes() -> None:
    assert told(row("a"), control="it is away") == {(CONTROL_LOST, "control")}
    alarms = Alarms()
    lost: Troubles = {(CONTROL_LOST, "control"): "it is away"}
    assert alarms.look(lost, 0.0, 0.0) == alarms.look(lost, 299.0, 299.0) == []
    assert [event.alert for event in alarms.look(lost, 300.0, 300.0)] == [CONTROL_LOST]


async def test_a_proxy_that_follows_control_hears_when_it_does_not_answer(
    tmp_path: Path, free_port: int
) -> None:
    token_file = tmp_path / "service.token"
    token_file.write_text("token")
    settings = ProxySettings(
        control_url=f"http://127.0.0.1:{free_port}", token_file=token_file, keep_state=False
    )
    core = ProxyCore(settings, "inst-tested")
    assert core.control_trouble() is None
    *others, following = await _jobs(core, 1)
    for job in others:
        job.close()
    task = asyncio.ensure_future(following)
    assert "cannot be read" in await eventually(core.control_trouble, what="the trouble")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_trouble_is_told_once_it_has_lasted_and_once_it_is_over() -> None:
    alarms, hold = Alarms(), HOLDS[NODE_DOWN]
    assert alarms.look(DOWN, 0.0, 100.0) == []
    (event,) = alarms.look(DOWN, hold.rise, 103.0)
    assert event == Event(NODE_DOWN, "a", "ejected: silent", 100.0)
    assert alarms.look(DOWN, 50.0, 150.0) == []
    assert alarms.firing() == [event]
    assert alarms.look({}, 50.0 + hold.fall - 1, 159.0) == []
    (over,) = alarms.look({}, 50.0 + hold.fall, 160.0)
    assert (over.since, over.until) == (100.0, 160.0)
    assert over.words.startswith("over after 60 s: node down: a")
    assert alarms.firing() == []


def test_what_passes_before_it_was_told_is_never_told() -> None:
    alarms = Alarms()
    for second in range(0, 100, 4):
        assert alarms.look(DOWN, second, second) == []
        assert alarms.look({}, second + 2, second + 2) == []


def test_a_node_that_flaps_is_told_once() -> None:
    alarms = Alarms()
    events = [
        event for second in range(100) for event in alarms.look(DOWN if second % 8 < 5 else {}, second, 0)
    ]
    assert len(events) == 1


def test_events_go_out_together_and_messages_keep_a_distance() -> None:
    outbox = Outbox()
    outbox.add([Event(NODE_DOWN, "a", "x", 0)], 0.0)
    outbox.add([Event(NODE_DOWN, "b", "x", 1)], 1.0)
    assert outbox.due(GROUP_SECONDS - 0.1) is None
    due = outbox.due(GROUP_SECONDS)
    assert due is not None
    assert [event.subject for event in due[0]] == ["a", "b"]
    assert outbox.due(100.0) is None
    outbox.add([Event(NODE_DOWN, "c", "x", 10)], 10.0)
    assert outbox.due(GROUP_SECONDS + DISTANCE_SECONDS - 0.1) is None
    assert outbox.due(GROUP_SECONDS + DISTANCE_SECONDS) is not None


def test_a_message_has_a_limit_and_counts_what_is_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EVENTS", 2)
    outbox = Outbox()
    outbox.add([Event(CLIENT_SILENT, str(number), "x", 0) for number in range(5)], 0.0)
    due = outbox.due(GROUP_SECONDS)
    assert due is not None
    assert (len(due[0]), due[1]) == (2, 3)


class FakeHook:
    """Takes messages as told: so many failures first, or never an end."""

    def __init__(self, failures: int = 0, *, hangs: bool = False) -> None:
        self.name = "fake"
        self.messages: list[dict[str, Any]] = []
        self.tries = 0
        self._failures = failures
        self._gate = asyncio.Event()
        if not hangs:
            self._gate.set()

    def release(self) -> None:
        self._gate.set()

    async def send(self, message: bytes) -> None:
        self.tries += 1
        await self._gate.wait()
        if self.tries <= self._failures:
            raise HookError("it fails")
        self.messages.append(json.loads(message))


def fire(alerting: Alerting, number: int) -> None:
    """Let one more trouble become a message."""
    start = number * (DISTANCE_SECONDS + 30)
    for second in (0.0, 1.0, GROUP_SECONDS + 1):
        alerting.look({(CLIENT_SILENT, f"c{number}"): "quiet"}, start + second, start + second)


async def test_a_message_says_what_began_and_what_is_over() -> None:
    hook = FakeHook()
    alerting = Alerting([hook], {"port": 11989, "instance_id": "inst-1"}, pauses=())
    running = asyncio.create_task(alerting.run())
    fire(alerting, 0)
    fire(alerting, 1)
    await eventually(lambda: len(hook.messages) == 2, what="two messages")
    running.cancel()
    first, second = hook.messages
    assert first["proxy"]["port"] == 11989
    assert "client silent: c0 (quiet)" in first["text"]
    assert [(event["subject"], event["status"]) for event in second["events"]] == [
        ("c1", "firing"),
        ("c0", "over"),
    ]
    assert [event["subject"] for event in second["firing"]] == ["c1"]
    assert second["id"] != first["id"]


async def test_a_hook_that_fails_is_asked_again_and_then_left() -> None:
    once, always = FakeHook(failures=1), FakeHook(failures=1000)
    alerting = Alerting([once, always], {}, pauses=(0.0, 0.0))
    running = asyncio.create_task(alerting.run())
    fire(alerting, 0)
    await eventually(lambda: always.tries == 3 and once.messages, what="three tries")
    fire(alerting, 1)
    await eventually(lambda: len(once.messages) == 2, what="the next message")
    running.cancel()
    assert [row["ok"] for row in alerting.deliveries()].count(True) == 2
    assert alerting.deliveries()[0]["why"] in {"it fails", ""}


async def test_a_hook_that_hangs_lets_a_bounded_number_wait_and_counts_the_rest() -> None:
    hook = FakeHook(hangs=True)
    alerting = Alerting([hook], {}, pauses=())
    running = asyncio.create_task(alerting.run())
    fire(alerting, 0)
    await eventually(lambda: hook.tries == 1, what="the first try")
    for number in range(1, MOST_WAITING + 4):
        fire(alerting, number)
    hook.release()
    await eventually(lambda: len(hook.messages) == MOST_WAITING + 1, what="all that waited")
    running.cancel()
    assert hook.messages[-1]["dropped_messages"] == 2


async def test_a_test_tells_how_each_hook_did_and_is_no_alert() -> None:
    good, bad = FakeHook(), FakeHook(failures=1000)
    alerting = Alerting([good, bad], {}, pauses=())
    assert [row["ok"] for row in await alerting.test()] == [True, False]
    assert good.messages[0]["test"] is True
    assert alerting.firing() == []


async def test_one_test_at_a_time() -> None:
    hook = FakeHook(hangs=True)
    alerting = Alerting([hook], {}, pauses=())
    first = asyncio.create_task(alerting.test())
    await eventually(lambda: hook.tries == 1, what="the first test")
    with pytest.raises(BusyError):
        await alerting.test()
    hook.release()
    assert [row["ok"] for row in await first] == [True]


async def test_without_hooks_nothing_is_kept_for_them() -> None:
    alerting = Alerting([], {})
    for number in range(3):
        fire(alerting, number)
    assert alerting.hook_names() == []
    assert len(alerting.firing()) == 1
