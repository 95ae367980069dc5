"""Drawing ports for chutes, and seeing who holds one."""

import os
import socket

from hypothesis import given
from hypothesis import strategies as st

from gpupool.core.ports import CHUTE_PORTS, RESERVED_PORTS, draw_chute_port, port_holder, port_is_free


@given(st.sets(st.sampled_from(CHUTE_PORTS), max_size=200))
def test_a_drawn_port_is_in_range_and_nobodys(taken: set[int]) -> None:
    port = draw_chute_port(taken)
    assert port is not None
    assert port in CHUTE_PORTS
    assert port not in RESERVED_PORTS
    assert port not in taken


def test_the_search_goes_all_the_way_round() -> None:
    only = next(port for port in CHUTE_PORTS if port not in RESERVED_PORTS and port_is_free(port))
    others = set(CHUTE_PORTS) - {only}
    assert {draw_chute_port(others) for _ in range(5)} == {only}


def test_there_is_none_when_all_are_taken() -> None:
    assert draw_chute_port(CHUTE_PORTS) is None


def test_a_reserved_port_is_never_drawn() -> None:
    assert draw_chute_port((), ports=range(32000, 32002)) is None


def test_a_port_in_use_is_not_drawn_and_its_holder_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not port_is_free(port)
        assert draw_chute_port((), ports=range(port, port + 1)) is None
        assert (port_holder(port) or "").startswith(f"pid {os.getpid()} (")
    assert port_holder(port) is None
