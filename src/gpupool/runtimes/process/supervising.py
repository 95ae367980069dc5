"""One placement's run: launch, watch, restart by the policy, end.

A supervisor is one task. It waits for whatever comes first - the exit, the end of patience with its health, too
much memory, the order to stop - then ends everything that is left of the launch, and decides on the next one.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import aiohttp
import structlog

from gpupool.core import failpoints
from gpupool.core.errors import EnvironmentProblemError
from gpupool.core.ids import new_id
from gpupool.core.processes import ProcessIdentity
from gpupool.fleet.ports.runtime import Instance, InstanceState, LaunchOrder
from gpupool.runtimes.process import probing
from gpupool.runtimes.process.closed_paths import closed_path
from gpupool.runtimes.process.ending import end_workload, survivors
from gpupool.runtimes.process.environment import (
    Surroundings,
    build_command,
    build_environment,
)
from gpupool.runtimes.process.exits import ExitWatch
from gpupool.runtimes.process.health import HealthJudge, HealthTimings
from gpupool.runtimes.process.launching import collect, spawn
from gpupool.runtimes.process.output import last_words, size_of
from gpupool.runtimes.process.reasons import exit_reason, with_closed_path
from gpupool.runtimes.process.records import Phase, RunFolder, RunRecord

_log = structlog.get_logger(__name__)

MOST_BACKOFF_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the runtime does by time; tests use shorter spans."""

    health: HealthTimings = field(default_factory=HealthTimings)
    first_backoff: float = 0.5
    """Seconds before the first restart; doubles up to 30 s."""
    watch_pause: float = 1.0
    """Seconds between two looks at memory and output size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a supervisor needs of its runtime."""

    around: Surroundings
    policy: Policy
    session: aiohttp.ClientSession
    draw_port: Callable[[LaunchOrder, int | None], int]
    """Returns a free port for an order, the present one if that is still free; raises LaunchFailedError."""
    changed: Callable[[], None]


class Supervisor:
    """Runs one placement until it is over for good."""

    def __init__(self, context: Context, folder: RunFolder, record: RunRecord) -> None:
        self._context = context
        self._folder = folder
        self.record = record
        self._state = InstanceState.EXITED if record.phase is Phase.EXITED else InstanceState.STARTING
        self._memory_mib: int | None = None
        self._begun = asyncio.Event()
        self._probed = asyncio.Event()
        self._too_much = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._grace = record.order.grace_seconds
        self._adopted = False
        self._written = 0
        """Bytes of output before the present launch."""
        self._closed: Path | None = None
        """What its command names and its wall does not let it read."""
        self._task: asyncio.Task[None] | None = None

    @property
    def order(self) -> LaunchOrder:
        """What it was asked to run."""
        return self.record.order

    @property
    def over(self) -> bool:
        """Whether nothing of it runs and nothing will."""
        return self._state is InstanceState.EXITED

    @property
    def process(self) -> ProcessIdentity | None:
        """The leader of the present launch."""
        return self.record.process

    @property
    def instance(self) -> Instance:
        """What the port shows of it."""
        process = self.record.process
        return Instance(
            placement_id=self.order.placement_id,
            state=self._state,
            port=self.record.port,
            pid=process.pid if process else None,
            restarts=self.record.restarts,
            reason=self.record.reason,
            memory_mib=self._memory_mib,
        )

    async def start(self) -> None:
        """Launch for the first time, and watch; a launch that fails ends the run with its reason."""
        self._watch(self._first())
        await self._begun.wait()

    async def adopt(self) -> None:
        """Watch a process that an earlier agent launched; returns once its health was asked for the first time."""
        self._adopted = True
        self._state = InstanceState.RUNNING
        self._watch(self._run())
        await self._probed.wait()

    async def stop(self, grace_seconds: float) -> None:
        """End the run and return when it is over; a repeated call may shorten the grace, 0 ends it at once."""
        self._grace = min(grace_seconds, self._grace) if self._stop.is_set() else grace_seconds
        self._stop.set()
        if grace_seconds <= 0:
            self._hurry.set()
        if self._task is not None:
            await asyncio.wait({self._task})
            self._task.result()

    async def let_go(self) -> None:
        """Stop watching and leave the process running."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def measured(self, process: ProcessIdentity, used_mib: int) -> None:
        """Take in the memory that a launch's processes hold together; too much of it ends that launch."""
        if process != self.record.process or self._too_much.is_set():
            return
        self._memory_mib = used_mib
        if used_mib > self.order.memory_mib:
            self._too_much.set()

    def _watch(self, work: Coroutine[None, None, None]) -> None:
        name = f"supervise {self.order.placement_id}"
        self._task = asyncio.get_running_loop().create_task(self._guarded(work), name=name)

    async def _guarded(self, work: Coroutine[None, None, None]) -> None:
        """Let a fault of ours end the run like any other reason, so that it is told and placed anew."""
        try:
            await work
        except Exception as fault:  # noqa: BLE001 - supervises: a fault of ours must be told, not hang the placement
            _log.exception("supervisor failed", placement=self.order.placement_id)
            if self.record.process is not None:
                await self._clear(self.record.process, exited=True)
                collect(self.record.process)
            await self._finish(f"fault: {type(fault).__name__} in the agent, whose log says more")
        finally:
            self._begun.set()
            self._probed.set()

    async def _first(self) -> None:
        launched = await self._launch(self.record)
        self._begun.set()
        if launched:
            await self._run()

    async def _run(self) -> None:
        while True:
            reason = await self._until_over()
            self._probed.set()
            if self._stop.is_set():
                await self._finish("stopped")
                return
            if self.record.streak >= self.order.max_restarts:
                await self._finish(reason)
                return
            if not await self._again(reason):
                return

    async def _again(self, reason: str) -> bool:
        """Wait out the back-off and launch again; False when the run is over instead."""
        pause = min(self._context.policy.first_backoff * 2**self.record.streak, MOST_BACKOFF_SECONDS)
        _log.warning("restarting", placement=self.order.placement_id, reason=reason, after_seconds=pause)
        self.record = replace(self.record, reason=reason, process=None)
        self._show(InstanceState.RUNNING)
        try:
            await asyncio.wait_for(self._stop.wait(), pause)
        except TimeoutError:
            grown = replace(self.record, restarts=self.record.restarts + 1, streak=self.record.streak + 1)
            return await self._launch(grown)
        await self._finish("stopped")
        return False

    async def _launch(self, record: RunRecord) -> bool:
        """Launch once; False, and over, when that fails."""
        try:
            await asyncio.to_thread(self._folder.prepare, self.record.uid)
            port = self._context.draw_port(record.order, record.port)
            self.record = replace(
                record,
                phase=Phase.LAUNCHING,
                port=port,
                process=None,
                instance_id=new_id("inst"),
                launched_at=time.time(),
            )
            # Shielded: once begun, the launch is recorded to its end even when we are let go meanwhile.
            self.record = await asyncio.shield(asyncio.to_thread(self._launch_now, self.record, port))
        except EnvironmentProblemError as error:
            await self._finish(with_closed_path(f"launch: {error.message.rstrip('.')}", self._closed))
            return False
        self._too_much.clear()
        self._adopted = False
        _log.info(
            "launched",
            placement=self.order.placement_id,
            workload=self.order.workload_name,
            pid=self.record.process.pid if self.record.process else None,
            port=port,
        )
        self._show(InstanceState.RUNNING)
        return True

    def _launch_now(self, record: RunRecord, port: int) -> RunRecord:
        """Write the intent, launch, write who it is. Blocks for some milliseconds."""
        self._folder.write(record)
        failpoints.reach("runtime.launch.intended")
        self._written = size_of(self._folder.output)
        around = self._context.around
        environment = build_environment(
            record.order, self._folder, around, port, record.instance_id, record.uid
        )
        command = build_command(record.order, environment, around.host, port)
        kernels = around.kernels(record.order, self._folder, record.uid)
        confined = around.confinement.plan(
            self._folder, record.uid, (around.models, *around.identity(record.order)), kernels
        )
        self._closed = closed_path(command, confined["allowed"])
        process = spawn(command, environment, self._folder, confined, around.confinement.note())
        failpoints.reach("runtime.launch.spawned")
        running = replace(record, phase=Phase.RUNNING, process=process)
        try:
            self._folder.write(running)
        except EnvironmentProblemError:
            process.signal(signal.SIGKILL, group=True)
            collect(process)
            raise
        failpoints.reach("runtime.launch.recorded")
        return running

    async def _until_over(self) -> str:
        """Watch one launch; return why it is over, when nothing of it runs any more."""
        process = self.record.process
        if process is None:
            raise RuntimeError("only a launched run is watched")
        judge = self._judge(process)
        with ExitWatch(process) as exit_watch:
            waits = {
                asyncio.ensure_future(exit_watch.wait()): "exit",
                asyncio.ensure_future(self._watch_health(process, judge)): "health",
                asyncio.ensure_future(self._too_much.wait()): "memory",
                asyncio.ensure_future(self._stop.wait()): "stop",
            }
            try:
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for waiting in waits:
                    waiting.cancel()
                await asyncio.wait(waits)
            causes = {waits[future]: future for future in done}
            reason = str(causes["health"].result()) if "health" in causes else ""
            if judge.settled(asyncio.get_running_loop().time()):
                self.record = replace(self.record, streak=0)
            await self._clear(process, exited="exit" in causes)
            code = collect(process)
        if "exit" in causes:
            spent = process.age()
            said = await asyncio.to_thread(last_words, self._folder.output, self._written)
            reason = exit_reason(code, spent, said)
            return with_closed_path(reason, self._closed) if code and code > 0 else reason
        if "memory" in causes:
            return f"memory: used {self._memory_mib} MiB of {self.order.memory_mib}"
        return reason

    async def _clear(self, process: ProcessIdentity, *, exited: bool) -> None:
        """End what is left of a launch: at once when its leader is gone, else with the grace."""
        self._show(InstanceState.STOPPING if self._stop.is_set() else InstanceState.RUNNING)
        grace = 0.0 if exited else self._grace
        await end_workload(
            self._context.around.runs,
            self.order.placement_id,
            process,
            grace,
            self._hurry,
            self.record.uid,
        )

    async def _finish(self, reason: str) -> None:
        self.record = self.record.exited(reason)
        failpoints.reach("runtime.end.before")
        try:
            await asyncio.to_thread(self._folder.write, self.record)
        except EnvironmentProblemError as error:
            # The disk may be full. A later agent then finds a dead process in the record and says so.
            _log.warning("end not recorded", placement=self.order.placement_id, error=error.message)
        failpoints.reach("runtime.end.after")
        _log.info("over", placement=self.order.placement_id, reason=self.record.reason)
        self._show(InstanceState.EXITED)

    def _show(self, state: InstanceState) -> None:
        self._state = state
        self._context.changed()

    def _judge(self, process: ProcessIdentity) -> HealthJudge:
        timings = self._context.policy.health
        age = process.age()
        allowed = self.order.start_timeout_seconds
        if self._adopted:
            # It may be past its start time-out; it still gets the patience of one that was healthy.
            allowed = max(allowed, age + timings.unhealthy_limit)
        launched = asyncio.get_running_loop().time() - age
        return HealthJudge(timings, launched, allowed)

    async def _watch_health(self, process: ProcessIdentity, judge: HealthJudge) -> str:
        loop, timings = asyncio.get_running_loop(), self._context.policy.health
        port = self.record.port or 0
        url = probing.url_of(self._context.around.host, port, self.order.health_path, tls=self.order.tls)
        while True:
            fault = await probing.ask(self._context.session, url, self.record.instance_id, timings.timeout)
            if fault is None and not judge.healthy:
                fault = await self._stranger(process, port)
            verdict = judge.note(fault, loop.time())
            if verdict is not None:
                return verdict
            state = InstanceState.HEALTHY if judge.healthy else InstanceState.RUNNING
            if state is not self._state:
                self._show(state)
            self._probed.set()
            await asyncio.sleep(judge.next_pause())

    async def _stranger(self, process: ProcessIdentity, port: int) -> str | None:
        def held() -> bool:
            ours = survivors(self._context.around.runs, self.order.placement_id, process, self.record.uid)
            return probing.port_is_held(ours, port)

        return None if await asyncio.to_thread(held) else f"another process answers on port {port}"
