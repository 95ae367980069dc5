"""Commands about nodes: what they do to what the sources say, and that they are kept before they count."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpupool.core.errors import (
    ConflictError,
    EnvironmentProblemError,
    GpupoolError,
    InvalidInputError,
    LimitReachedError,
    NotFoundError,
)
from gpupool.recompute.proxy import orders as module
from gpupool.recompute.proxy.nodes import Directory, Kind, NodeWish
from gpupool.recompute.proxy.orders import Orders
from gpupool.recompute.proxy.trust import Trust, trust_of

A, B = "a:11989", "b:11989"


class Stage:
    """A directory with two nodes of the file, and commands."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "nodes.json"
        self.directory = Directory()
        self.orders = Orders(self.path, self.directory)
        self.directory.replace(
            "file", [NodeWish("a", 11989), NodeWish("b", 11989, weight=3.0, draining=True)]
        )

    async def say(self, action: str, node: str, **given: Any) -> str:
        return await self.orders.change(action, node, given)

    def wish(self, name: str) -> NodeWish:
        return self.directory.nodes[name].wish

    def restarted(self) -> "Stage":
        return Stage(self.path.parent)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


async def test_a_node_is_added_with_what_was_said_of_it(stage: Stage) -> None:
    assert await stage.say("add", "c", weight=2.5, sockets=24, kind="http") == "c:11989"
    for later in (stage, stage.restarted()):
        assert later.wish("c:11989") == NodeWish("c", 11989, 2.5, 24, Kind.HTTP)
        assert later.directory.sources("c:11989") == ("command",)


async def test_a_node_of_a_source_is_taken_out_and_comes_back(stage: Stage) -> None:
    await stage.say("remove", "a")
    stage.directory.replace("file", [NodeWish("a", 11989), NodeWish("b", 11989)])
    assert set(stage.directory.nodes) == {B}
    assert stage.orders.removed() == [A]
    again = stage.restarted()
    assert set(again.directory.nodes) == {B}
    await again.say("add", "a", weight=2)
    assert again.wish(A).weight == 2
    assert again.directory.sources(A) == ("file",)
    await again.say("reset", "a")
    assert again.wish(A).weight == 1


async def test_a_node_that_only_a_command_added_is_gone_for_good(stage: Stage) -> None:
    await stage.say("add", "c")
    await stage.say("remove", "c")
    assert "c:11989" not in stage.restarted().directory.nodes
    assert stage.orders.removed() == []
    assert json.loads(stage.path.read_text())["orders"] == {}


async def test_draining_and_back(stage: Stage) -> None:
    await stage.say("drain", "a")
    assert stage.restarted().wish(A).draining
    await stage.say("undrain", "a")
    assert not stage.restarted().wish(A).draining


async def test_what_a_source_drains_cannot_be_undrained_here(stage: Stage) -> None:
    with pytest.raises(ConflictError, match=r"drained by its source \(file\)"):
        await stage.say("undrain", "b")


async def test_a_weight_keeps_what_else_was_said(stage: Stage) -> None:
    await stage.say("drain", "a")
    await stage.say("weight", "a", weight=0.5)
    await stage.say("weight", "a", sockets=7)
    wish = stage.restarted().wish(A)
    assert (wish.draining, wish.weight, wish.sockets) == (True, 0.5, 7)
    await stage.say("reset", "a")
    assert stage.restarted().wish(A) == NodeWish("a", 11989)


async def test_the_node_itself_stays_when_its_wish_changes(stage: Stage) -> None:
    node = stage.directory.nodes[A]
    await stage.say("weight", "a", weight=9)
    assert stage.directory.nodes[A] is node


@pytest.mark.parametrize(
    ("action", "node", "given", "kind"),
    [
        ("add", "a", {}, ConflictError),
        ("drain", "c", {}, NotFoundError),
        ("reset", "c", {}, NotFoundError),
        ("explode", "a", {}, InvalidInputError),
        ("add", "http://c", {}, InvalidInputError),
        ("add", "c", {"weight": 0}, InvalidInputError),
        ("add", "c", {"weight": 1e9}, InvalidInputError),
        ("add", "c", {"weight": float("nan")}, InvalidInputError),
        ("add", "c", {"weight": "2"}, InvalidInputError),
        ("add", "c", {"weight": True}, InvalidInputError),
        ("add", "c", {"sockets": 1.5}, InvalidInputError),
        ("add", "c", {"sockets": 5000}, InvalidInputError),
        ("add", "c", {"kind": "tls"}, InvalidInputError),
        ("add", "c", {"kind": ["http"]}, InvalidInputError),
        ("add", "c", {"trust": ["tsl"]}, InvalidInputError),
        ("add", "c", {"trust": "tls"}, InvalidInputError),
        ("add", "c", {"trust": [1]}, InvalidInputError),
        ("add", "c", {"trust": ["tls"] * 9}, InvalidInputError),
        ("drain", "a", {"weight": 1}, InvalidInputError),
        ("weight", "a", {"kind": "http"}, InvalidInputError),
        ("add", "c", {"removed": True}, InvalidInputError),
    ],
)
async def test_what_is_not_valid_changes_nothing(
    stage: Stage, action: str, node: str, given: dict[str, Any], kind: type[GpupoolError]
) -> None:
    with pytest.raises(kind):
        await stage.say(action, node, **given)
    assert set(stage.directory.nodes) == {A, B}
    assert not stage.path.exists()


async def test_how_a_node_is_reached_is_checked_and_kept(stage: Stage) -> None:
    stage.directory.default_trust = Trust(token_file=Path("/token"))
    words = ["tls=/ca.pem", "server-name=x"]
    await stage.say("add", "c", trust=words)
    again = stage.restarted()
    assert again.wish("c:11989").trust == Trust(tls=True, ca=Path("/ca.pem"), server_name="x")
    assert stage.wish("c:11989").trust == trust_of(words, stage.directory.default_trust)

    def refuse(trust: Trust) -> None:
        raise EnvironmentProblemError(f"{trust.ca} is not there")

    strict = Orders(stage.path, stage.directory, refuse)
    with pytest.raises(EnvironmentProblemError, match=r"other\.pem is not there"):
        await strict.change("add", "d", {"trust": ["tls=/other.pem"]})
    assert "d:11989" not in stage.restarted().directory.nodes


async def test_a_kept_node_that_could_only_be_reached_plainly_by_mistake_is_not_reached(stage: Stage) -> None:
    await stage.say("add", "c", trust=["tls"])
    kept = json.loads(stage.path.read_text())
    kept["orders"]["c:11989"]["trust"] = ["tsl"]
    stage.path.write_text(json.dumps(kept))
    assert set(stage.restarted().directory.nodes) == {A, B}


async def test_what_cannot_be_kept_is_not_done(stage: Stage) -> None:
    stage.path.parent.rmdir()
    with pytest.raises(EnvironmentProblemError):
        await stage.say("add", "c")
    assert set(stage.directory.nodes) == {A, B}


async def test_there_is_a_limit(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ORDERS", 1)
    await stage.say("add", "c")
    with pytest.raises(LimitReachedError):
        await stage.say("add", "d")
    await stage.say("remove", "c")
    await stage.say("add", "d")


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"version": 1, "orders": {"a b": {}}}', '{"version": 1, "orders": {"a": {"weight": 0}}}'],
)
async def test_a_file_that_is_none_is_put_aside_and_the_sources_count(tmp_path: Path, content: str) -> None:
    (tmp_path / "nodes.json").write_text(content)
    stage = Stage(tmp_path)
    assert set(stage.directory.nodes) == {A, B}
    assert (tmp_path / "nodes.unreadable").read_text() == content
    await stage.say("add", "c")
    assert "c:11989" in stage.restarted().directory.nodes


async def test_what_lies_in_the_place_of_the_file_keeps_no_proxy_from_starting(tmp_path: Path) -> None:
    (tmp_path / "nodes.unreadable").touch()
    (tmp_path / "nodes.json").mkdir()  # cannot be put aside either
    assert set(Stage(tmp_path).directory.nodes) == {A, B}
    (tmp_path / "nodes.json").rmdir()
    os.mkfifo(tmp_path / "nodes.json")  # reading it would wait for ever
    assert set(Stage(tmp_path).directory.nodes) == {A, B}


async def test_commands_of_a_predecessor_count_once_it_has_let_go(stage: Stage) -> None:
    successor = stage.restarted()
    await stage.say("add", "c")
    successor.orders.read()
    assert "c:11989" in successor.directory.nodes


async def test_a_node_under_another_port_is_hinted_at(stage: Stage) -> None:
    with pytest.raises(NotFoundError) as raised:
        await stage.say("drain", "a:11990")
    assert "there is a:11989" in raised.value.remedy
    with pytest.raises(NotFoundError) as raised:
        await stage.say("drain", "nowhere")
    assert "nodes list" in raised.value.remedy
