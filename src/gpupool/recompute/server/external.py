"""Keeps the operator's own ``chia_recompute_server`` running: started, watched, limited, started again, and heard.

The founding complaint of remote recompute is a server that crashed and nobody knew. This process is its parent: it
sees every end at once, says so in the log, and starts it again, at first soon and then with growing pauses.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from gpupool.contracts.recompute import ExternalDevice, ExternalView
from gpupool.core.clock import Clock, SystemClock
from gpupool.core.errors import InvalidInputError
from gpupool.core.files import ensure_private_dir
from gpupool.core.home import Home
from gpupool.core.ids import new_id
from gpupool.core.listening import bind, stop_signal
from gpupool.core.logging import set_up_logging
from gpupool.core.processes import identify_self
from gpupool.core.records import ProcessRecord
from gpupool.recompute.server.banner import say
from gpupool.recompute.server.cards import CardChoices
from gpupool.recompute.server.external_lines import Tally, TroubleLine, lines_of, read_line
from gpupool.recompute.server.external_status import ExternalStatus, one_port
from gpupool.recompute.server.leash import NOT_STARTED, leashed
from gpupool.recompute.server.passage import HOST, Passage, places
from gpupool.recompute.server.registering import NodeList
from gpupool.recompute.variables import ChiaposVariables

ROLE: Final = "recompute-external"
SUMMARY_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 5.0
SETTLED_SECONDS: Final = 60.0
"""A program that ran this long is started again at once; one that ends sooner waits ever longer."""
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalServer:
    """How to run the program."""

    program: Path
    host: str = "127.0.0.1"
    port: int = 11989
    threads: int | None = None
    """None leaves it to CHIAPOS_MAX_CORES and the program's own default."""
    memory_mb: int | None = None
    """Resident memory from which on the program is ended and started again; None sets no limit."""
    status: bool = False
    """Take the port ourselves: answer HTTP with what is known, and pass frames on to the program on loopback."""
    register: Path | None = None
    """List of nodes of a proxy, in which the server stands from its first start until this process ends."""
    stop_seconds: float = 5.0
    """Time to end after SIGTERM, before SIGKILL."""

    def check(self) -> None:
        """Raise InvalidInputError where this cannot work here."""
        if not (self.program.is_file() and os.access(self.program, os.X_OK)):
            raise InvalidInputError(
                f"{self.program} is not a program that can be started.",
                remedy="Give the path of the original chia_recompute_server, and chmod +x it.",
            )
        if sys.platform == "win32":
            raise InvalidInputError(
                "External programs are kept on Linux only, in this version.",
                remedy="Run the original as a Windows service with restart on failure.",
            )
        if not 1 <= self.port <= 65535:
            raise InvalidInputError(f"{self.port} is not a port; it must be 1 to 65535.")
        if self.memory_mb is not None and not Path("/proc/self/statm").exists():
            raise InvalidInputError(
                "A memory limit needs /proc, which this system does not have.",
                remedy="Leave out --memory-mb.",
            )

    def command(self, choices: CardChoices, port: int | None = None) -> list[str]:
        """Return the arguments in the form that the original takes: lists as repeated options.

        ``port``: one on loopback, where it is not to have the port itself.
        """
        place = (self.host, self.port) if port is None else (HOST, port)
        arguments = [str(self.program.absolute()), "-p", str(place[1]), "--host", place[0]]
        if self.threads is not None:
            arguments += ["-r", str(self.threads)]
        for choice, limit, index in ((choices.cuda, "-G", "-g"), (choices.opencl, "-O", "-c")):
            if choice.limit is not None:
                arguments += [limit, str(choice.limit)]
            arguments += [part for number in choice.indexes for part in (index, str(number))]
        return arguments


def run_external(server: ExternalServer, choices: CardChoices, log_level: str = "INFO") -> None:
    """Keep the program running until SIGTERM or SIGINT; errors of `core.errors` before it is first started."""
    server.check()
    with bind("the recompute server", server.host, server.port, "GPUPOOL_RECOMPUTE") as listener:
        set_up_logging("recompute", log_level)
        if not server.status:
            listener.close()
        with suppress(asyncio.CancelledError):
            asyncio.run(_run(server, choices, listener))


async def _run(server: ExternalServer, choices: CardChoices, listener: socket.socket) -> None:
    instance_id = os.environ.get("GPUPOOL_INSTANCE_ID") or new_id("inst")
    record = _keep_record(server, instance_id)
    try:
        if not server.status:
            await Keeper(server, server.command(choices)).run()
            return
        port = _free_port()
        keeper = Keeper(server, server.command(choices, port))
        threads = ChiaposVariables.from_environment().max_cores if server.threads is None else server.threads
        passage = Passage(port, places(threads))
        async with one_port(listener, ExternalStatus(instance_id, keeper.view, passage), passage):
            await keeper.run()
    finally:
        if record is not None:
            record.unlink(missing_ok=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _keep_record(server: ExternalServer, instance_id: str) -> Path | None:
    """Leave a record for `gpupool status` where the operator chose a state folder; return its path."""
    if not os.environ.get("GPUPOOL_HOME") or not sys.platform.startswith("linux"):
        return None
    record = ProcessRecord(
        role=ROLE, instance_id=instance_id, process=identify_self(), host=server.host, port=server.port
    )
    return record.write(ensure_private_dir(Home.from_environment().run))


class Keeper:
    """Starts one program over and over."""

    def __init__(self, server: ExternalServer, command: Sequence[str], clock: Clock | None = None) -> None:
        self._server, self._command = server, command
        self._clock: Clock = clock or SystemClock()
        self._pause = FIRST_PAUSE
        self.tally = Tally()
        self.starts = 0
        self._pid: int | None = None
        self._why: str | None = None

    def view(self) -> ExternalView:
        """Return what is known of the program."""
        tally = self.tally
        return ExternalView(
            program=str(self._server.program),
            pid=self._pid,
            listening=self._pid is not None and tally.listening is not None,
            devices=[ExternalDevice(name=device.name, engine=device.engine) for device in tally.devices],
            requests=tally.requests,
            failed=tally.failed,
            on_card=tally.on_card,
            troubles=tally.troubles,
            mean_ms={f"C{level}": round(ms, 1) for level, ms in sorted(tally.mean_ms.items())},
            starts=self.starts,
            why=self._why,
        )

    async def run(self) -> None:
        """Keep the program running until this process is told to stop."""
        stop = stop_signal()
        server = self._server
        nodes = None if server.register is None else NodeList(server.register, server.host, server.port)
        if nodes is not None:
            nodes.add()
        summing = asyncio.create_task(self._sum_up())
        try:
            await self.keep(stop)
        finally:
            summing.cancel()
            if nodes is not None:
                nodes.remove()

    async def keep(self, stop: asyncio.Event) -> None:
        """Keep the program running until ``stop``."""
        while not stop.is_set():
            began = self._clock.monotonic()
            status = await self._once(stop)
            if stop.is_set():
                break
            seconds = self._clock.monotonic() - began
            pause = self._next_pause(seconds)
            self._why = f"it ended with status {status} after {seconds:.0f} s"
            log.error("external_ended", status=status, ran_seconds=round(seconds, 1), again_in=pause)
            with_stop = asyncio.create_task(stop.wait())
            await asyncio.wait({with_stop}, timeout=pause)
            with_stop.cancel()
        log.info("external_stopped", **self.tally.summary())

    def _next_pause(self, ran_seconds: float) -> float:
        if ran_seconds >= SETTLED_SECONDS:
            self._pause = FIRST_PAUSE
        pause = self._pause
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)
        return pause

    async def _once(self, stop: asyncio.Event) -> int:
        """Run the program once and return its exit status, negative for a signal."""
        self.tally.restarted()
        try:
            child = await asyncio.create_subprocess_exec(
                *leashed(self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            log.warning("external_not_started", program=self._command[0], reason=error.strerror)
            return NOT_STARTED
        self.starts += 1
        self._pid = child.pid
        log.info("external_started", program=self._command[0], pid=child.pid, start=self.starts)
        waiting = [
            asyncio.create_task(child.wait()),
            asyncio.create_task(stop.wait()),
            asyncio.create_task(self._outgrown(child.pid)),
        ]
        hearing = asyncio.create_task(self._hear(child))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._end(child)
            self._pid = None
            for task in waiting:
                task.cancel()
            await asyncio.wait({hearing}, timeout=1.0)
            hearing.cancel()
        return child.returncode or 0

    async def _hear(self, child: asyncio.subprocess.Process) -> None:
        if child.stdout is None:
            return
        async for text in lines_of(child.stdout):
            say(text)
            line = read_line(text)
            self.tally.note(line)
            if isinstance(line, TroubleLine):
                log.warning("external_trouble", line=text)

    async def _outgrown(self, pid: int) -> None:
        """Return once the program holds more memory than it may; never where there is no limit."""
        limit = self._server.memory_mb
        while True:
            held = 0 if limit is None else resident_mb(pid)
            if limit is not None and held > limit:
                log.error("external_too_large", pid=pid, memory_mb=held, limit_mb=limit)
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        """Ask the program and what it has started to end; then make them."""
        for number, seconds in ((signal.SIGTERM, self._server.stop_seconds), (signal.SIGKILL, 5.0)):
            if child.returncode is not None:
                return
            with suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            try:
                async with asyncio.timeout(seconds):
                    await child.wait()
            except TimeoutError:
                log.warning("external_does_not_end", pid=child.pid, signal=number.name)

    async def _sum_up(self) -> None:
        seen = 0
        while True:
            await asyncio.sleep(SUMMARY_SECONDS)
            if self.tally.requests != seen:
                seen = self.tally.requests
                log.info("external_summary", **self.tally.summary())


def resident_mb(pid: int) -> int:
    """Return the resident memory of a process in MiB; 0 where it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20
