"""A pool of control on PostgreSQL and several nodes, of which any process and the database may die at any moment.

`LightPool` with more machines: each further node is an agent with a state folder and a loopback address of its own, so
that no two of them want the same port. Whatever has died is started again by the next look; nothing else is mended.
"""

import json
import signal
from pathlib import Path
from typing import Any

from gpupool.core.files import write_private
from gpupool.core.home import Home
from gpupool.core.processes import ProcessIdentity
from gpupool.runtimes.process.marks import find_marked
from gpupool.store.postgres_url import VARIABLE
from light_pool import LightPool, Member
from postgres_server import PostgresServer

SILENCE_SECONDS = 3


class FurtherNode:
    """One more machine."""

    def __init__(self, pool: LightPool, number: int) -> None:
        name = f"node-{number}"
        self.home = Home(pool.folder / name)
        env = pool.agent.env | {
            "GPUPOOL_HOME": str(self.home.root),
            "GPUPOOL_NODE_NAME": name,
            "GPUPOOL_MACHINE_IDENTITY": name,
            "GPUPOOL_NODE_ADDRESS": f"127.0.0.{10 + number}",
        }
        self.agent = Member("agent", ["agent", "run"], env, pool.folder / f"{name}.log")

    def start(self, token: str) -> None:
        """Let it join."""
        self.home.prepare()
        write_private(self.home.join_token, token)
        self.agent.start()

    def processes(self) -> list[ProcessIdentity]:
        """Return the processes of its workloads."""
        return [found.process for found in find_marked(self.home.agent / "runs")]


class FleetPool(LightPool):
    """Control on a PostgreSQL server of its own, and ``nodes`` agents."""

    def __init__(self, folder: Path, *, nodes: int = 3, **variables: str) -> None:
        self.server = PostgresServer()
        self.server.start()
        self.database = self.server.new_database()
        given = {VARIABLE: self.database.dsn, "GPUPOOL_CONTROL_SILENCE_SECONDS": str(SILENCE_SECONDS)}
        super().__init__(folder, **given | variables)
        self.agent.env["GPUPOOL_NODE_ADDRESS"] = "127.0.0.10"
        self.further = [FurtherNode(self, number) for number in range(1, nodes)]

    @property
    def agents(self) -> list[Member]:
        """Every node's agent."""
        return [self.agent, *(node.agent for node in self.further)]

    async def __aexit__(self, *told: object) -> None:
        for node in self.further:
            node.agent.kill()
        await super().__aexit__(*told)
        self.server.close()

    async def start(self) -> None:
        """Start everything and return when each node is ready."""
        await super().start()
        token = self.home.join_token.read_text()
        for node in self.further:
            node.start(token)
        await self.until(self.all_ready, "every node ready")

    async def all_ready(self) -> bool:
        """Tell whether each node is ready and linked."""
        reply = await self.try_once("GET", "/v1/nodes")
        found = reply.json() if reply is not None and reply.status_code == 200 else []
        ready = [node for node in found if node["state"] == "ready" and node["connected"]]
        return len(ready) == len(self.agents)

    def tend(self) -> None:
        """Start again what has died."""
        super().tend()
        for node in self.further:
            if node.agent.process is not None and not node.agent.runs:
                node.agent.start()

    def break_database(self, number: signal.Signals) -> None:
        """End the server with a signal, and start it again."""
        self.server.stop(number)
        self.server.start()

    def processes(self) -> list[ProcessIdentity]:
        """Return every process that some node's workloads consist of."""
        return super().processes() + [found for node in self.further for found in node.processes()]

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the run records of all nodes, by placement."""
        records = super().records()
        for node in self.further:
            for path in (node.home.agent / "runs").glob("*/record.json"):
                records[path.parent.name] = json.loads(path.read_text())
        return records

    def journaled(self) -> set[str]:
        """Return the placements that the nodes' journals want."""
        wanted = super().journaled()
        for node in self.further:
            wanted |= set(json.loads((node.home.agent / "journal.json").read_text())["wanted"])
        return wanted

    def queued_commands(self) -> int:
        """Return how many commands no node has acknowledged."""
        return int(self.server.sql("SELECT count(*) FROM commands", str(self.database.url.database)))

    def in_order(self, numbers: list[int]) -> bool:
        """Take gaps: PostgreSQL gives no number twice, also where what had it was never kept."""
        return numbers == sorted(set(numbers))

    def logs(self) -> str:
        """Return the end of every log, for a failure's report."""
        logs = [node.agent.log for node in self.further if node.agent.log.exists()]
        return "\n".join([super().logs(), *(f"== {log.name}\n{log.read_text()[-2000:]}" for log in logs)])
