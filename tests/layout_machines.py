"""Machines of a small farm on this one: network namespaces of their own around a hub that forwards between them.

What the hub forwards it can also drop without a word, as a pulled cable or a bad firewall does. Nothing of it touches
the network of whoever runs the tests, and everything is gone when the holding processes end. Where the system lets
nobody make namespaces, `Loopback` stands in: every machine is the loopback interface, and what would be dropped is
left to the test's stand-in (see `layout_farm`).
"""

import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol, Self

_WAIT = "read line || true"
"""A shell that lives until its standard input closes: it holds a namespace, and ends with the test at the latest."""


class Network(Protocol):
    """Where the machines stand."""

    drops: bool
    """Whether `drop` can be used."""

    def address(self, machine: int) -> str:
        """Return the address that others reach a machine (1..9) at."""
        ...

    def on(self, machine: int, command: Sequence[str]) -> list[str]:
        """Return the command line that runs ``command`` on a machine, in place of itself."""
        ...

    def drop(self, machine: int) -> None:
        """Drop every packet to and from a machine until `restore`."""
        ...

    def restore(self, machine: int) -> None:
        """Let its packets pass again."""
        ...

    def close(self) -> None:
        """Take everything down."""
        ...


class Loopback:
    """All machines are this one."""

    drops = False

    def address(self, machine: int) -> str:
        return f"127.77.{machine}.2"

    def on(self, machine: int, command: Sequence[str]) -> list[str]:
        return list(command)

    def drop(self, machine: int) -> None:
        raise NotImplementedError

    def restore(self, machine: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        return


class Namespaces:
    """A namespace a machine, and the hub's; raises OSError where they cannot be made."""

    drops = True

    def __init__(self, machines: int) -> None:
        self._holders = ExitStack()
        self._machines: dict[int, int] = {}
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        self._enter = ["--net"] if os.geteuid() == 0 else ["--user", "--preserve-credentials", "--net"]
        try:
            self._hub = self._hold(["unshare", "--net", *user])
            self._run(self._hub, "echo 1 > /proc/sys/net/ipv4/ip_forward; ip link set lo up")
            for machine in range(1, machines + 1):
                self._join(machine)
        except BaseException:
            self.close()
            raise

    def address(self, machine: int) -> str:
        return f"10.77.{machine}.2"

    def on(self, machine: int, command: Sequence[str]) -> list[str]:
        return [*self._in(self._machines[machine]), *command]

    def drop(self, machine: int) -> None:
        self._run(
            self._hub,
            f"ip rule add pref 5 to 10.77.{machine}.2 blackhole; ip rule add pref 5 iif hub{machine} blackhole",
        )

    def restore(self, machine: int) -> None:
        self._run(
            self._hub,
            f"ip rule del pref 5 to 10.77.{machine}.2 blackhole; ip rule del pref 5 iif hub{machine} blackhole",
        )

    def close(self) -> None:
        self._holders.close()

    def _join(self, number: int) -> None:
        pid = self._hold([*self._in(self._hub), "unshare", "--net"])
        self._machines[number] = pid
        self._run(
            self._hub,
            f"ip link add hub{number} type veth peer name out{number} && ip link set out{number} netns {pid} && "
            f"ip addr add 10.77.{number}.1/24 dev hub{number} && ip link set hub{number} up",
        )
        self._run(
            pid,
            f"ip link set lo up && ip addr add 10.77.{number}.2/24 dev out{number} && "
            f"ip link set out{number} up && ip route add default via 10.77.{number}.1",
        )

    def _hold(self, prefix: list[str]) -> int:
        """Start a process that keeps a new namespace; it is in it once it has said so."""
        holder = subprocess.Popen(
            [*prefix, "sh", "-c", f"echo here; {_WAIT}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._holders.enter_context(holder)
        assert holder.stdout is not None
        if holder.stdout.readline() != b"here\n":
            raise OSError("namespaces cannot be made here")
        return holder.pid

    def _in(self, pid: int) -> list[str]:
        return ["nsenter", "--target", str(pid), *self._enter]

    def _run(self, pid: int, script: str) -> None:
        done = subprocess.run(
            [*self._in(pid), "sh", "-ec", script], check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise OSError(done.stderr)

    def __enter__(self) -> Self:
        return self


def make_network(machines: int) -> Network:
    """Return namespaces, or the stand-in where there can be none."""
    try:
        return Namespaces(machines)
    except OSError:
        return Loopback()
