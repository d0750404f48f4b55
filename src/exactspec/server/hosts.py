"""By which names the server may be called.

A page of another site can have its own name lead to this machine (DNS rebinding): the browser then takes the server
for that site and lets the page read all replies. What gives it away is the name, in the request's Host header.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?", re.ASCII)


class Hosts:
    """`bound`: where the server listens. `allowed`: names that are taken besides those of this machine.

    A server on a loopback address takes loopback names (localhost, 127.0.0.0/8, ::1) and `allowed`, with any port. One
    on another address is meant to be called by names that it cannot know: it takes all, unless some are allowed.
    """

    __slots__ = ("_all", "_names")

    def __init__(self, bound: str, allowed: Sequence[str] = ()) -> None:
        self._all = not allowed and not _leads_to_loopback(bound)
        self._names = {_plain(name) for name in (bound, *allowed)}

    def allow(self, header: str) -> bool:
        """Whether a request with this Host header is taken."""
        if self._all:
            return True
        name = name_in(header)
        return name is not None and (name in self._names or _is_loopback(name))


def name_in(header: str) -> str | None:
    """The name or address in a Host header, in lower case; None if it holds none.

    >>> name_in("My.Box:8000"), name_in("[::1]:80"), name_in("a b")
    ('my.box', '::1', None)
    """
    match = _HOST.fullmatch(header)
    return None if match is None else _plain(match[1])


def is_name(text: str) -> bool:
    """Whether `text` is a name or address alone, as it would stand in a Host header with no port."""
    match = _HOST.fullmatch(text)
    return match is not None and match[1] == text


def _plain(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761: these lead nowhere else
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _leads_to_loopback(bound: str) -> bool:
    """Of an address or a name to listen on; one that leads nowhere cannot be listened on either."""
    if _is_loopback(_plain(bound)):
        return True
    try:
        found = socket.getaddrinfo(bound, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    return _is_loopback(str(found[0][4][0]))
