"""Who counts as one client."""

import pytest

from gpupool.recompute.server.client_names import client_of


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("192.168.1.7", "192.168.1.7"),
        ("::1", "::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        (None, ""),
        ("somebody", "somebody"),
    ],
)
def test_an_address_is_a_client_and_so_is_a_network_of_version_6(address: str | None, name: str) -> None:
    assert client_of(address) == name
