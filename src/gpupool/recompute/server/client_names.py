"""Who counts as one client where clients share a server fairly.

The address, not the token: a farm gives all of its machines the same one. A home or a server has a whole network of
IPv6 addresses, so there the network is the client.
"""

from ipaddress import IPv6Address, ip_address

_HOST_BITS = 64


def client_of(address: str | None) -> str:
    """Return the name of the client at ``address`` as the socket tells it."""
    text = (address or "").partition("%")[0]
    try:
        parsed = ip_address(text)
    except ValueError:
        return text
    if not isinstance(parsed, IPv6Address) or parsed.is_loopback:
        return text
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> _HOST_BITS << _HOST_BITS)}/{_HOST_BITS}"
