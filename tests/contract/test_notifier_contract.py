"""Every way to tell somebody: a message arrives whole, a refusal and a silence are told, no secret ever is."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog.testing

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.notify.apprise_child import without_secrets
from gpupool.notify.courier import MOST_WAITING, Courier, Delivery, Outcome
from gpupool.notify.hooked import to_command, to_url
from gpupool.notify.log import LogNotifier
from gpupool.notify.opening import open_notifier
from gpupool.notify.port import NotDeliveredError, Note, Notifier
from gpupool.notify.through_apprise import AppriseNotifier
from polling import eventually
from receiver import Receiver

SECRET = "SeCrEtToKeN42"
NOTE = Note("gpupool: node silent: gpu-1", '节点 gpu-1\nsecond line, "quoted"', "failure", {"version": 1})


class Way:
    """One adapter, and what is at its other end."""

    def __init__(self, notifier: Notifier, received: Callable[[], list[dict[str, Any]]]) -> None:
        self.notifier, self.received = notifier, received


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as made:
        yield made


def program(folder: Path, body: str) -> Path:
    path = folder / "told"
    path.write_text(f"#!{sys.executable}\nimport sys, time\nfrom pathlib import Path\n{body}")
    path.chmod(0o700)
    return path


@pytest.fixture(params=["apprise", "url", "command"])
def way(request: pytest.FixtureRequest, tmp_path: Path, receiver: Receiver) -> Way:
    address = f"127.0.0.1:{receiver.port}/{SECRET}"
    if request.param == "apprise":
        return Way(open_notifier(apprise=f"json://{address}"), lambda: receiver.got)
    if request.param == "url":
        return Way(open_notifier(url=f"http://{address}"), lambda: receiver.got)
    out = tmp_path / "out"
    takes = program(tmp_path, f"Path({str(out)!r}).open('a').write(sys.stdin.read())")
    return Way(
        open_notifier(command=takes),
        lambda: [json.loads(line) for line in out.read_text().splitlines()],
    )


async def test_a_message_arrives_whole(way: Way) -> None:
    await way.notifier.send(NOTE)
    (got,) = way.received()
    assert got["title"] == NOTE.title
    # Apprise has its own form of JSON.
    assert got.get("text", got.get("message")) == NOTE.text
    assert got["version"] in {1, "1.0"}


async def test_messages_come_one_by_one(way: Way) -> None:
    for number in range(2):
        await way.notifier.send(dataclasses.replace(NOTE, title=f"number {number}"))
    assert [got["title"] for got in way.received()] == ["number 0", "number 1"]


def failing(kind: str, folder: Path, receiver: Receiver) -> Notifier:
    address = f"127.0.0.1:{receiver.port}/{SECRET}"
    seconds = 30.0 if receiver.hold is None else 1.0
    if kind == "apprise":
        return AppriseNotifier(f"json://user:{SECRET}@{address}", seconds)
    if kind == "url":
        return to_url(f"http://{address}", seconds)
    body = "sys.exit(3)" if receiver.hold is None else "time.sleep(600)"
    return to_command(program(folder, body), seconds)


@pytest.mark.parametrize("kind", ["apprise", "url", "command"])
@pytest.mark.parametrize("fault", ["refuses", "hangs"])
async def test_what_is_not_taken_is_told_without_the_secret(
    tmp_path: Path, receiver: Receiver, kind: str, fault: str
) -> None:
    receiver.status = 500
    receiver.hold = asyncio.Event() if fault == "hangs" else None
    notifier = failing(kind, tmp_path, receiver)
    with structlog.testing.capture_logs() as logged, pytest.raises(NotDeliveredError) as caught:
        await notifier.send(NOTE)
    assert SECRET not in f"{caught.value.message}{caught.value.remedy}{logged}{notifier.name}"
    assert notifier.name.split()[0] in caught.value.message
    assert caught.value.code == "not_delivered"


async def test_a_secret_is_in_no_command_line_and_no_environment(receiver: Receiver) -> None:
    receiver.hold = asyncio.Event()
    notifier = AppriseNotifier(f"json://127.0.0.1:{receiver.port}/{SECRET}")
    sending = asyncio.create_task(notifier.send(NOTE))

    def seen() -> list[str]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if b"apprise_child" in (told := (folder / "cmdline").read_bytes()):
                    found.append((told + (folder / "environ").read_bytes()).decode(errors="replace"))
            except OSError:
                continue
        return found

    (told,) = await eventually(seen, what="the process that sends")
    assert SECRET not in told
    assert "GPUPOOL_" not in told
    receiver.hold.set()
    await sending


async def test_what_apprise_does_not_understand_is_told() -> None:
    with pytest.raises(NotDeliveredError, match="does not understand its address"):
        await AppriseNotifier(f"nosuchservice://{SECRET}").send(NOTE)
    with pytest.raises(InvalidInputError) as caught:
        AppriseNotifier(SECRET)
    assert SECRET not in caught.value.message


def test_without_apprise_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblemError, match="not installed") as caught:
        AppriseNotifier("json://127.0.0.1/")
    assert "gpupool[alerts]" in caught.value.remedy


@pytest.mark.parametrize(
    "url",
    [
        f"dingtalk://{SECRET}@abcdefgh",
        f"mailtos://user:{SECRET}@smtp.example.org?to=ann@example.org",
        f"tgram://123456:{SECRET}/99887766/",
        f"json://host/p%61th?token={SECRET}",
    ],
)
def test_no_part_of_an_address_is_repeated(url: str) -> None:
    told = without_secrets(f"It failed: {url} {SECRET} path", url)
    for part in (SECRET, "abcdefgh", "smtp.example.org", "99887766", "path"):
        assert part not in told or part not in url.replace("p%61th", "path")


async def test_the_log_takes_everything() -> None:
    with structlog.testing.capture_logs() as logged:
        await open_notifier().send(NOTE)
    assert isinstance(open_notifier(), LogNotifier)
    assert (logged[0]["event"], logged[0]["title"], logged[0]["text"]) == ("alert", NOTE.title, NOTE.text)


class Gate:
    """Takes a message once it is let through."""

    name = "gate"

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.fails = 0
        self.notes: list[Note] = []

    async def send(self, note: Note) -> None:
        await self.open.wait()
        if self.fails:
            self.fails -= 1
            raise NotDeliveredError("gate: closed")
        self.notes.append(note)


async def test_a_courier_tries_thrice_keeps_sixteen_and_says_what_was_lost() -> None:
    gate, tries = Gate(), list[Delivery]()
    courier = Courier("ops", gate, tries.append, pauses=(0.0, 0.0))
    running = asyncio.create_task(courier.run())
    first = courier.post(NOTE)
    await eventually(lambda: not courier.waiting, what="the first under way")
    waiting = [courier.post(dataclasses.replace(NOTE, title=str(n))) for n in range(MOST_WAITING + 1)]
    assert await waiting[0] is False
    assert [done.outcome for done in tries] == [Outcome.DROPPED]
    gate.fails = 3
    gate.open.set()
    assert await first is False
    assert all(await asyncio.gather(*waiting[1:]))
    assert [done.final for done in tries[:4]] == [True, False, False, True]
    assert [note.title for note in gate.notes] == [str(n) for n in range(1, MOST_WAITING + 1)]
    assert gate.notes[0].text.endswith("(2 earlier messages did not get through.)")
    assert gate.notes[1].text == NOTE.text
    gate.open.clear()
    last = courier.post(NOTE)
    running.cancel()
    assert await last is False
