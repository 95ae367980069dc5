"""Asking a workload for its health, and making sure that it is the workload that answers.

A stranger's 200 on our port is not ours: an answer that names an instance must name this one, and the socket that
listens there must be held by one of the workload's processes.
"""

import json
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

import aiohttp

from gpupool.core.processes import ProcessIdentity

_LISTENING: Final = "0A"
_MOST_BYTES: Final = 64 * 1024


def url_of(host: str, port: int, path: str, *, tls: bool = False) -> str:
    """Return where to ask a workload that listens on ``host``; the any-address is asked through loopback."""
    scheme = "https" if tls else "http"
    with suppress(ValueError):
        address = ip_address(host)
        if address.is_unspecified:
            host = "::1" if address.version == 6 else "127.0.0.1"
    return f"{scheme}://[{host}]:{port}{path}" if ":" in host else f"{scheme}://{host}:{port}{path}"


async def ask(session: aiohttp.ClientSession, url: str, instance_id: str, timeout: float) -> str | None:
    """Return None when the workload answers well, else what is wrong, in words.

    Over TLS its certificate is not judged: the question holds no secret, it does not leave this machine, and whose
    process answers is seen from the kernel's tables (`port_is_held`). Those who call it from elsewhere judge it.
    """
    limit = aiohttp.ClientTimeout(total=timeout)
    try:
        async with session.get(url, timeout=limit, allow_redirects=False, ssl=False) as response:
            if not 200 <= response.status < 300:
                return f"it answers {response.status}"
            if response.content_type != "application/json":
                return None
            return _stranger(await response.content.read(_MOST_BYTES), instance_id)
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except aiohttp.ClientConnectorSSLError:
        return "it does not speak TLS, as its spec says"
    except aiohttp.ClientConnectorError:
        return "nothing listens on its port"
    except (aiohttp.ClientError, ValueError) as error:
        return f"its answer is no HTTP ({type(error).__name__})"


def _stranger(body: bytes, instance_id: str) -> str | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    named = value.get("instance_id") if isinstance(value, dict) else None
    if named is None or named == instance_id:
        return None
    return "another process answers on its port"


def port_is_held(processes: Iterable[ProcessIdentity], port: int) -> bool:
    """Tell whether one of ``processes`` listens on ``port``; True where the kernel does not let us see.

    Reads /proc; not for an event loop.
    """
    listeners = {f"socket:[{inode}]" for inode in listening_inodes(port)}
    return not listeners or any(_holds(process.pid, listeners) for process in processes)


def listening_inodes(port: int) -> set[int]:
    """Return the inodes of the sockets that listen on ``port``, of either IP version."""
    found: set[int] = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            with open(table) as file:
                lines = file.readlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(int(fields[9]))
    return found


def _holds(pid: int, sockets: Collection[str]) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except PermissionError:
        return True
    except OSError:
        return False
    return any(_target(f"{folder}/{name}") in sockets for name in names)


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
