"""Texts for systemd: the sidecar as a socket and a service, and what an existing harvester's unit is told.

The socket unit keeps the socket while the sidecar restarts, so that a look-up waits instead of failing.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SERVICE: Final = "gpupool-sidecar.service"
SOCKET: Final = "gpupool-sidecar.socket"
DROPIN: Final = "50-gpupool.conf"


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarUnit:
    """What the sidecar's units say."""

    command: Sequence[str]
    """The program that serves, with its arguments."""
    socket: Path
    home: Path
    """State folder of the sidecar."""
    secrets: Path
    """A file with more variables; only the service manager reads it."""
    user: str | None = None
    """Who runs it, where root installs for somebody else; systemd makes the state folder then."""
    of_system: bool = False
    """Whether these are the system's units, not a user's own."""

    def service(self) -> bytes:
        """Return the service unit."""
        who = ""
        if self.user is not None:
            who = f"User={self.user}\nStateDirectory={self.home.name}\nStateDirectoryMode=0700\n"
        text = f"""\
# Written by `gpupool harvester install`; `gpupool harvester remove` takes it away.
[Unit]
Description=gpupool: asks the GPU pool for the Chia harvester of this machine
Requires={SOCKET}
After={SOCKET} network-online.target
Wants=network-online.target

[Service]
Type=notify
NotifyAccess=main
FileDescriptorStoreMax=1024
{who}Environment={_quoted(f"GPUPOOL_HOME={self.home}")}
# For what is secret, such as GPUPOOL_PROXY_ALERT_URL=…; the file may be missing.
EnvironmentFile=-{_escaped(str(self.secrets))}
ExecStart={" ".join(_quoted(word).replace("$", "$$") for word in self.command)}
TimeoutStopSec=40
Restart=always
RestartSec=1
UMask=0077
LimitNOFILE=65536
NoNewPrivileges=yes

[Install]
WantedBy={"multi-user.target" if self.of_system else "default.target"}
"""
        return text.encode()

    def socket_unit(self) -> bytes:
        """Return the socket unit."""
        who = f"SocketUser={self.user}\n" if self.user is not None else ""
        text = f"""\
# Written by `gpupool harvester install`; `gpupool harvester remove` takes it away.
[Unit]
Description=gpupool: the socket that the Chia harvester asks

[Socket]
ListenStream={_escaped(str(self.socket))}
SocketMode=0600
{who}Backlog=2048
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
"""
        return text.encode()


def dropin(variables: Mapping[str, str]) -> bytes:
    """Return what a harvester's own unit is told in addition."""
    lines = "\n".join(f"Environment={_quoted(f'{name}={value}')}" for name, value in variables.items())
    text = f"""\
# Written by `gpupool harvester install`; `gpupool harvester remove` takes it away.
[Unit]
Wants={SOCKET}
After={SOCKET}

[Service]
{lines}
"""
    return text.encode()


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """Return a word as systemd reads it back: nothing in it is a specifier, and no blank divides it."""
    plain = _escaped(text).replace("\\", "\\\\").replace('"', '\\"')
    return plain if shlex.quote(plain) == plain else f'"{plain}"'
