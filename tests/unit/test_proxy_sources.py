"""Nodes from a file and from the feed: what is taken, and that what cannot be read changes nothing."""

import gc
import os
import socket
import warnings
from pathlib import Path

import pytest

from gpupool.contracts.feed import EndpointsView, FeedEndpoint
from gpupool.core.errors import InvalidInputError
from gpupool.fleet.endpoints import EndpointHealth
from gpupool.fleet.workloads import Protocol
from gpupool.recompute.proxy.main import running
from gpupool.recompute.proxy.nodes import Directory, Kind, NodeWish
from gpupool.recompute.proxy.settings import ProxySettings
from gpupool.recompute.proxy.sources import (
    NodesFile,
    read_nodes_file,
    take_feed,
    wishes_of_arguments,
    wishes_of_text,
)
from gpupool.recompute.proxy.trust import Trust


def test_a_line_names_a_node_and_what_is_special_about_it() -> None:
    text = "# rigs\n192.168.1.5\nrig-2:11000 weight=2.5 sockets=24 kind=frames # old\n\n[::1]:12000 drain\n"
    assert wishes_of_text(text) == [
        NodeWish("192.168.1.5", 11989),
        NodeWish("rig-2", 11000, 2.5, 24, Kind.FRAMES),
        NodeWish("::1", 12000, draining=True),
    ]


@pytest.mark.parametrize(
    "line",
    ["a b", "host weight=0", "host weight=nan", "host weight=x", "host sockets=0", "host kind=tls", "h:0"],
)
def test_a_line_that_is_not_valid_is_named(line: str) -> None:
    with pytest.raises(InvalidInputError, match="Line 2 "):
        wishes_of_text(f"good\n{line}\n")


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file or directory"), (b"\xff", "it is not UTF-8 text")]
)
def test_a_file_that_cannot_be_read_is_told_once_with_its_option(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "nodes"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInputError) as caught:
        read_nodes_file(path)
    assert caught.value.message == f"The list of nodes {path} cannot be read: {reason}."
    assert "--nodes-file" in str(caught.value.remedy)


async def test_a_start_that_fails_at_the_file_leaves_nothing_behind(tmp_path: Path) -> None:
    settings = ProxySettings(nodes_file=tmp_path / "missing")
    with socket.create_server(("127.0.0.1", 0)) as listener, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(InvalidInputError):
            await running(settings, listener).__aenter__()
        gc.collect()
    assert [str(warning.message) for warning in warned] == []


def test_a_file_is_followed_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    path, directory = tmp_path / "nodes", Directory()
    path.write_text("a\nb\n")
    directory.replace("arguments", [NodeWish("c", 1)])
    followed = NodesFile(path, directory)
    assert set(directory.nodes) == {"a:11989", "b:11989", "c:1"}
    kept = directory.nodes["b:11989"]
    for text in ("b\nc:99999\n", None):
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        look_twice(followed)
        assert set(directory.nodes) == {"a:11989", "b:11989", "c:1"}
    other = tmp_path / "new"
    other.write_text("b weight=3\nd\n")
    os.replace(other, path)
    look_twice(followed)
    assert set(directory.nodes) == {"b:11989", "d:11989", "c:1"}
    assert directory.nodes["b:11989"] is kept
    assert kept.wish.weight == 3


def look_twice(followed: NodesFile) -> None:
    """A change is taken once it is seen to last."""
    followed.look()
    followed.look()


def test_a_file_that_is_written_in_pieces_is_taken_when_it_is_whole(tmp_path: Path) -> None:
    path, directory = tmp_path / "nodes", Directory()
    path.write_text("a\nb\n")
    followed = NodesFile(path, directory)
    for written in ("", "a\n", "a\nb\n", "a\nb\nc\n"):
        path.write_text(written)
        followed.look()
        assert set(directory.nodes) == {"a:11989", "b:11989"}
    followed.look()
    assert set(directory.nodes) == {"a:11989", "b:11989", "c:11989"}


def test_a_file_that_lost_its_content_changes_nothing_and_one_that_says_so_is_empty(tmp_path: Path) -> None:
    path, directory = tmp_path / "nodes", Directory()
    path.write_text("a\n")
    followed = NodesFile(path, directory)
    path.write_text("")
    look_twice(followed)
    assert set(directory.nodes) == {"a:11989"}
    path.write_text("# none for now\n")
    look_twice(followed)
    assert not directory.nodes


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    path, directory = tmp_path / "nodes", Directory()
    path.write_text("a\n")
    followed = NodesFile(path, directory)
    path.unlink()
    os.mkfifo(path)
    look_twice(followed)
    assert set(directory.nodes) == {"a:11989"}
    with pytest.raises(InvalidInputError, match="is no file"):
        read_nodes_file(path)


def test_the_feed_names_http_nodes_and_drains_those_that_end() -> None:
    def endpoint(name: str, address: str, state: str) -> FeedEndpoint:
        return FeedEndpoint.model_validate(
            {
                "id": name,
                "placement": "pl-1",
                "node": "node-1",
                "workload": "wl-1",
                "models": [],
                "protocol": Protocol.RECOMPUTE,
                "address": address,
                "state": state,
                "health": next(iter(EndpointHealth)),
                "concurrency": 2,
            }
        )

    directory = Directory()
    view = EndpointsView(
        revision=1,
        workloads=[],
        endpoints=[
            endpoint("ep-1", "10.0.0.1:11989", "active"),
            endpoint("ep-2", "10.0.0.2:11989", "draining"),
            endpoint("ep-3", "http://no", "active"),
        ],
    )
    take_feed(view, directory)
    assert {name: node.wish.draining for name, node in directory.nodes.items()} == {
        "10.0.0.1:11989": False,
        "10.0.0.2:11989": True,
    }
    assert all(node.kinds == {Kind.HTTP} for node in directory.nodes.values())
    take_feed(EndpointsView(revision=2, workloads=[], endpoints=[]), directory)
    assert directory.nodes == {}


@pytest.mark.parametrize(
    "wrong",
    [{"port": 70000}, {"sockets": 0}, {"frame_limit": 2**20 + 1}, {"deadline_seconds": 0.0}, {"nodes": ()}],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        ProxySettings(**{"nodes": ("a",), **wrong})  # type: ignore[arg-type]


def test_the_feed_says_who_speaks_tls_and_the_proxy_whom_it_trusts() -> None:
    def endpoint(number: int, *, tls: bool) -> FeedEndpoint:
        return FeedEndpoint(
            id=f"ep-{number}", placement=f"pl-{number}", node="node-1", workload="wl-1", models=[],
            protocol=Protocol.RECOMPUTE, address=f"10.0.0.{number}", tls=tls, state="active", health=EndpointHealth.OK,
        )  # fmt: skip

    view = EndpointsView(revision=1, workloads=[], endpoints=[endpoint(1, tls=True), endpoint(2, tls=False)])
    for default, expected in (
        (Trust(), (True, False)),
        (Trust(tls=True, ca=Path("/ca")), (True, True)),
        (Trust(token_file=Path("/token")), (True, False)),
    ):
        directory = Directory()
        directory.default_trust = default
        take_feed(view, directory)
        trusts = [node.trust for node in directory.nodes.values()]
        assert tuple(trust.tls for trust in trusts) == expected, "the feed can ask for TLS, never for less"
        assert {(trust.ca, trust.token_file) for trust in trusts} == {(default.ca, default.token_file)}


def test_nodes_of_the_command_line_may_carry_options_in_quotes() -> None:
    wishes = wishes_of_arguments(("a,b:1", "c:2 weight=2 tls=/ca token-file=/t", "d plain"), Trust(tls=True))
    assert [(wish.name, wish.trust) for wish in wishes] == [
        ("a:11989", None),
        ("b:1", None),
        ("c:2", Trust(tls=True, ca=Path("/ca"), token_file=Path("/t"))),
        ("d:11989", Trust()),
    ]
    with pytest.raises(InvalidInputError):
        wishes_of_arguments(("a speed=9",))
