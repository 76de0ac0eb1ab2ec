"""Which network addresses a fetched picture may come from: public ones, and those the operator named."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

METADATA = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Azure, Google, DigitalOcean, OpenStack
        "169.254.170.2",  # AWS ECS
        "169.254.170.23",  # AWS EKS
        "fd00:ec2::254",
        "fd00:ec2::23",
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure's wire server, a public address
        "192.0.0.192",  # Oracle
        "fd20:ce::254",  # Google, IPv6
    )
)
"""Where clouds give credentials to whoever asks from inside."""

_NAT64 = ip_network("64:ff9b::/96")
_GLOBAL_V6 = ip_network("2000::/3")
# What Python's is_global lets through, or let through in some 3.11 and 3.12: IANA's special-purpose registries.
_SPECIAL_V4 = tuple(ip_network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "100.64.0.0/10", "198.18.0.0/15"))
# Tunnels carry an IPv4 address that somebody else unwraps; nobody serves pictures from them.
_SPECIAL_V6 = tuple(
    ip_network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "2620:4f:8000::/48")
)


def unwrapped(address: Address) -> Address:
    """The IPv4 address that an IPv4-mapped or NAT64 address stands for; any other as it is."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Whether an address (unwrapped) belongs to the public internet: no private, loopback, link-local, multicast or
    special-purpose one, and no cloud's metadata."""
    if address in METADATA or address.is_multicast or not address.is_global:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_V4)
    return address in _GLOBAL_V6 and not any(address in network for network in _SPECIAL_V6)


class AddressRule:
    """What may be connected to.

    Args:
        networks: private networks that are allowed nevertheless.
    """

    def __init__(self, networks: Sequence[str] = ()) -> None:
        self._networks: tuple[Network, ...] = tuple(ip_network(text) for text in networks)

    def allows(self, text: str) -> bool:
        """Whether the address (as the resolver or the socket says it) may be connected to. False for what is none."""
        try:
            address = unwrapped(ip_address(text.partition("%")[0]))
        except ValueError:
            return False
        if address in METADATA:
            return False
        return is_public(address) or any(address in network for network in self._networks)
