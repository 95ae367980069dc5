"""A network of a test's own between this machine and one more: a cable that can be pulled and put back.

The other machine is a network namespace; the cable is a pair of virtual interfaces. A pulled cable loses packets
without a word, which no closed socket does. Only root may lay one to the namespace that the tests run in.
"""

import os
import subprocess
from typing import Self

_KEEPER = "ip link set lo up && echo up && exec sleep infinity"


class Cable:
    """A further machine at `there`, connected to this one, which it sees at `here`."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise OSError("only root may lay a cable out of a network namespace: run these tests as root")
        number = os.getpid() % 65_536
        self._name = f"gpt{number}"
        network = f"10.{200 + number % 50}.{number // 256}"
        self.here, self.there = f"{network}.1", f"{network}.2"
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", _KEEPER],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != "up\n":
            _, told = self._keeper.communicate()
            raise OSError(f"this machine makes no network namespaces, which this test needs: {told}")
        peer = ("peer", "name", "eth0", "netns", str(self._keeper.pid))
        _run("ip", "link", "add", self._name, "type", "veth", *peer)
        _run("ip", "address", "add", f"{self.here}/24", "dev", self._name)
        _run(*self.prefix, "ip", "address", "add", f"{self.there}/24", "dev", "eth0")
        _run(*self.prefix, "ip", "link", "set", "eth0", "up")
        self.put_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _run("ip", "link", "delete", self._name)
        self._keeper.kill()
        self._keeper.communicate()

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put in front of a command so that it runs on the other machine; the process id stays its own."""
        return ("nsenter", "--net", "--target", str(self._keeper.pid))

    def pull(self) -> None:
        """Lose every packet from now on."""
        _run("ip", "link", "set", self._name, "down")

    def put_back(self) -> None:
        """Carry packets again."""
        _run("ip", "link", "set", self._name, "up")


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
