"""An agent as a real process, for tests: started, asked to end, or killed without a word."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpupool.contracts.agent_link import StartOrder
from gpupool.core.files import ensure_private_dir, write_private
from scripted_control import ScriptedControl
from workloads import HEALTHY


class AgentProcess:
    """One agent on a state folder; the folder may see many agents one after another."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = home.parent / "agent.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> Path:
        """Its run records."""
        return self.home / "agent" / "runs"

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def start(self, control: ScriptedControl, *arguments: str, **variables: str) -> None:
        """Start it; a token file is laid where it looks for one."""
        ensure_private_dir(self.home / "keys")
        write_private(self.home / "keys" / "join.token", control.token)
        environment = {
            **os.environ,
            "GPUPOOL_HOME": str(self.home),
            "GPUPOOL_CONTROL_URL": control.url,
            "GPUPOOL_NODE_NAME": "tested",
            **variables,
        }
        program = "from gpupool.cli.agent import app; from gpupool.core.errors import GpupoolError\n"
        program += "import sys\ntry:\n    app(['run', *sys.argv[1:]])\n"
        program += "except GpupoolError as error:\n    print(error.message, file=sys.stderr); sys.exit(error.exit_code)"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Return its exit code once it has ended; negative for a signal."""
        assert self._process is not None
        return await asyncio.wait_for(asyncio.to_thread(self._process.wait), 60)

    async def kill(self) -> None:
        """End it without a word, as the kernel would."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            await self.ended()


def start_order(placement_id: str, command: tuple[str, ...] = HEALTHY, **changes: Any) -> dict[str, Any]:
    """Return the payload of a start command."""
    values: dict[str, Any] = {
        "placement_id": placement_id,
        "workload_id": "wl-1",
        "workload_name": "tested",
        "kind": "chute",
        "command": list(command),
        "grace_seconds": 5.0,
        "max_restarts": 0,
        "memory_mib": 256,
    }
    return StartOrder.model_validate({**values, **changes}).model_dump(mode="json")
