"""Files of nodes to be added, and the line that each gets."""

from pathlib import Path

import pytest

from gpupool.cli.node_list_file import MAX_BYTES, MAX_ENTRIES, MalformedNodesError, read_nodes
from gpupool.contracts.join_command import is_loopback, join_command
from gpupool.core.errors import InvalidInputError, NotFoundError, TooLargeError

CSV = """name, hourly_usd, region, short_ref, address
gpu-1, 1.25, de-fra, l4, 10.0.0.1
gpu-2, , , ,
"""
YAML = """
- {name: gpu-1, hourly_usd: 1.25, region: de-fra, short_ref: l4, address: 10.0.0.1}
- name: gpu-2
"""


@pytest.mark.parametrize(("name", "text"), [("nodes.csv", CSV), ("nodes.CSV", CSV), ("nodes.yaml", YAML)])
def test_both_forms_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text("\ufeff" + text if name.endswith("CSV") else text)
    first, second = read_nodes(tmp_path / name)
    assert (first.name, first.hourly_usd, first.region) == ("gpu-1", 1.25, "de-fra")
    assert (first.short_ref, first.address) == ("l4", "10.0.0.1")
    assert second.model_dump(exclude_unset=True) == {"name": "gpu-2"}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("n.csv", "name\ngpu 1\n", "node 1: name: takes 1 to 63 lower-case letters"),
        ("n.csv", "name,region\ngpu-1,De\n", "node 1: region: takes 1 to 40 lower-case letters"),
        ("n.csv", "name,price\ngpu-1,3\n", "node 1: price: unknown field"),
        ("n.csv", "name\ngpu-1,3\n", "more fields than the header"),
        ("n.csv", "name,hourly_usd\ngpu-1,-1\n", "hourly_usd: takes 0 or more"),
        ("n.csv", "name\n", "has 0 nodes"),
        ("n.csv", 'name\n"gpu-1\n', "no CSV that can be read"),
        ("n.csv", "name\n" + "".join(f"n-{n}\n" for n in range(MAX_ENTRIES + 1)), "takes 1 to 1000"),
        ("n.yaml", "- name: a\n- name: a\n", "node 2: a stands there a second time"),
        ("n.yaml", "name: a\n", "a list is expected"),
        ("n.yaml", "- name: [\n", "n.yaml:2: no YAML"),
        ("n.yaml", "- just text\n", "node 1"),
        ("n.yaml", "[" * 2000, "not YAML|no YAML"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(MalformedNodesError, match=words):
        read_nodes(tmp_path / name)


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no file"):
        read_nodes(tmp_path / "none.csv")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_nodes(tmp_path)
    (tmp_path / "odd.csv").write_bytes(b"name\n\xff\n")
    with pytest.raises(MalformedNodesError, match=r"not UTF-8 text \(byte 5\)"):
        read_nodes(tmp_path / "odd.csv")
    (tmp_path / "large.csv").write_bytes(b"n" * (MAX_BYTES + 1))
    with pytest.raises(TooLargeError):
        read_nodes(tmp_path / "large.csv")


def test_the_line_to_paste_keeps_the_token_off_the_command_line() -> None:
    assert join_command("gpj_x", "gpu-1", "http://c:32000", "10.0.0.1") == (
        "GPUPOOL_JOIN_TOKEN=gpj_x gpupool agent run --control http://c:32000 --name gpu-1 --address 10.0.0.1"
    )
    assert join_command("gpj_x", None, "http://c:32000; rm", None) == (
        "GPUPOOL_JOIN_TOKEN=gpj_x gpupool agent run --control 'http://c:32000; rm'"
        " --address \"$(hostname -I | cut -d' ' -f1)\""
    )


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("http://127.0.0.1:32000", True),
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
        ("http://0.0.0.0:32000", True),
        ("http://control.example:32000", False),
        ("http://10.0.0.1:32000", False),
    ],
)
def test_an_address_of_this_machine_only_is_known(url: str, own: bool) -> None:
    assert is_loopback(url) is own
