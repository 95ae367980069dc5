"""Addresses and lists: what operators write, and what they write by mistake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.core.errors import GpupoolError, InvalidInputError
from gpupool.recompute.addresses import format_address, parse_address, parse_addresses, parse_list

HOSTS = st.one_of(
    st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z0-9]{1,10}){0,3}", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
)
PORTS = st.integers(1, 65535)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.168.1.5", ("192.168.1.5", 11989)),
        (" 192.168.1.6:11000 ", ("192.168.1.6", 11000)),
        ("localhost", ("localhost", 11989)),
        ("rig_7.lan.", ("rig_7.lan.", 11989)),
        ("::1", ("::1", 11989)),
        ("[::1]", ("::1", 11989)),
        ("[FE80::0:1]:80", ("fe80::1", 80)),
    ],
)
def test_what_operators_write(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


def test_the_default_port_can_be_another() -> None:
    assert parse_address("a", 7) == ("a", 7)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("http://192.168.1.5:11989", "URL"),
        ("CHIAPOS_RECOMPUTE_HOST=192.168.1.5", "variable"),
        ("host:", "port"),
        ("host:0", "port"),
        ("host:70000", "port"),
        ("host:1e3", "port"),
        ("host:-1", "port"),
        ("host:١", "port"),
        ("[::1]x", "IPv6"),
        ("[host]", "IPv6"),
        ("[::1]:", "port"),
        ("a:b:c", "IPv6"),
        ("two words", "name"),
        ("-p", "name"),
        (":11989", "name"),
        ("a/b", "name"),
        ("x" * 300, "name"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, word: str) -> None:
    with pytest.raises(InvalidInputError, match=word) as caught:
        parse_address(text)
    assert caught.value.remedy


@given(HOSTS, PORTS)
def test_what_is_written_out_reads_as_itself(host: str, port: int) -> None:
    assert parse_address(format_address((host, port))) == (host, port)


@given(st.text(max_size=80))
def test_any_text_is_an_address_or_a_clear_error(text: str) -> None:
    try:
        host, port = parse_address(text)
    except GpupoolError as error:
        assert error.code == "invalid_input"
    else:
        assert parse_address(format_address((host, port))) == (host, port)


def test_lists_are_written_with_commas_or_as_repeated_options_or_both() -> None:
    assert (
        parse_list("a, b,,c ") == parse_list(["a,b", "c"]) == parse_list(["a", "b", "c"]) == ("a", "b", "c")
    )
    assert parse_list("") == parse_list([]) == ()


def test_a_list_keeps_its_order_and_names_each_address_once() -> None:
    assert parse_addresses("b:2,a,b:2,[::1]", 9) == (("b", 2), ("a", 9), ("::1", 9))


def test_a_list_has_an_end() -> None:
    with pytest.raises(InvalidInputError, match="4096"):
        parse_list("a," * 4097)
