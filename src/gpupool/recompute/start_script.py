"""The one line that points a harvester at its servers, and the start scripts of the operators' guide around it."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from gpupool.core.errors import InvalidInputError
from gpupool.recompute.addresses import parse_address, parse_list

VARIABLE: Final = "CHIAPOS_RECOMPUTE_HOST"


class Shell(StrEnum):
    """Where the line is typed."""

    CMD = "cmd"
    POWERSHELL = "powershell"
    SH = "sh"


_LINES: Final = {
    Shell.CMD: "set {name}={value}",
    Shell.POWERSHELL: '$env:{name} = "{value}"',
    Shell.SH: "export {name}={value}",
}
_SCRIPTS: Final = {
    Shell.CMD: (
        "start_harvester.cmd",
        (
            "@ECHO OFF\nsetlocal\n{line}\n"
            'start "Chia Gigahorse" cmd.exe /K ".\\chia.exe start harvester"\n:EXIT\nendlocal\n'
        ),
    ),
    Shell.SH: ("start_harvester.sh", "#!/bin/bash\n{line}\n./chia.bin start harvester\n"),
}


def checked_hosts(values: Sequence[str]) -> str:
    """Return hosts as the variable wants them, each as it was written; raises InvalidInputError for a bad one."""
    entries = parse_list(values)
    for entry in entries:
        parse_address(entry)
    if not entries:
        raise InvalidInputError(
            "No recompute host is given.", remedy=f"Name one, such as 192.168.1.5:11989, or set {VARIABLE}."
        )
    return ",".join(entries)


def environment_line(shell: Shell, hosts: str) -> str:
    """Return the command that sets the variable in ``shell``; ``hosts`` come from `checked_hosts`."""
    return _LINES[shell].format(name=VARIABLE, value=hosts)


def start_script(shell: Shell, hosts: str) -> tuple[str, bytes]:
    """Return name and content of the harvester's start script; raises InvalidInputError where the guide has none."""
    if shell not in _SCRIPTS:
        raise InvalidInputError(
            f"There is no start script for {shell}.", remedy="Use --shell cmd, which PowerShell can run too."
        )
    name, template = _SCRIPTS[shell]
    text = template.replace("{line}", environment_line(shell, hosts))
    return name, text.replace("\n", "\r\n" if shell is Shell.CMD else "\n").encode("ascii")
