"""One device under test: a worker process as the server has them, asked one thing after another or many at once.

A driver that crashes or hangs takes its own process with it and nothing else, and is named.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

from gpupool.core.errors import DeadlineError, GpupoolError
from gpupool.pos.costs import Kind
from gpupool.recompute.server.messages import Ask, Done, Failed, Message, Ready, Unfit
from gpupool.recompute.server.questions import Question
from gpupool.recompute.server.staffing import WorkerPlan
from gpupool.recompute.server.worker_process import WorkerProcess

START_SECONDS: Final = 300.0
"""For drivers, compilers and the self-test."""
_END_SECONDS: Final = 2.0
_KILLED: Final = 9


class DeviceFailedError(GpupoolError):
    """A device did not answer, or not with what is right."""

    code = "device_failed"
    default_remedy = "Look at the driver's log, lower clocks, or leave the device out (-G, -O, -g, -c)."


class DeviceGivenUpError(DeviceFailedError):
    """A device did not start, or gave no answer in time: another try would cost as long and tell no more."""

    code = "device_given_up"


class Device:
    """A device whose worker runs."""

    def __init__(self, plan: WorkerPlan) -> None:
        """Start the worker; raises OSError where the system cannot."""
        self.plan = plan
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Done]] = {}
        self._process = WorkerProcess(plan.factory, plan.threads, "ERROR", self._hear)
        self._process.ended.add_done_callback(self._end)

    async def ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until it has compiled and given known answers; raises DeviceGivenUpError."""
        try:
            async with asyncio.timeout(seconds):
                await self._ready
        except TimeoutError as error:
            raise DeviceGivenUpError(f"It was not ready after {seconds:g} s.") from error

    async def ask(self, kind: Kind, question: Question, seconds: float) -> Done:
        """Return the verified answer and the seconds it was computed; raises DeviceFailedError.

        DeviceGivenUpError, a kind of it, where nothing came within ``seconds``.
        """
        if self._process.ended.done():
            raise _fault(self._process.ended.result())
        number = next(self._numbers)
        answer: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._process.send(Ask(number, kind, question, seconds))
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError as error:
            raise DeviceGivenUpError(f"It gave no answer within {seconds:g} s.") from error
        finally:
            self._asked.pop(number, None)

    def forget_peak(self) -> None:
        """Let `peak_bytes` count from here, where the system can do that."""
        with suppress(OSError):
            Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def peak_bytes(self) -> int | None:
        """Return the most memory that the worker has held; None where the system does not tell."""
        with suppress(OSError):
            for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        return None

    async def close(self) -> None:
        """End the worker."""
        self._process.close()
        await asyncio.wait({self._process.ended}, timeout=_END_SECONDS)
        if not self._process.ended.done():
            self._process.kill()
            await asyncio.wait({self._process.ended}, timeout=_END_SECONDS)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Ready) and not self._ready.done():
            self._ready.set_result(None)
        elif isinstance(message, Unfit) and not self._ready.done():
            self._ready.set_exception(DeviceGivenUpError(message.message, remedy=message.remedy))
        elif isinstance(message, Done | Failed):
            answer = self._asked.get(message.number)
            if answer is None or answer.done():
                return
            if isinstance(message, Done):
                answer.set_result(message)
            else:
                late = message.code == DeadlineError.code
                kind = DeviceGivenUpError if late else DeviceFailedError
                answer.set_exception(kind(message.message, remedy=message.remedy))

    def _end(self, ended: "asyncio.Future[int]") -> None:
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(_fault(ended.result()))
        if not self._ready.done():
            message = f"Before it was ready, {_how(ended.result())}."
            self._ready.set_exception(DeviceGivenUpError(message))
            # Nobody may be waiting for this any more.
            self._ready.exception()


def _fault(status: int) -> DeviceFailedError:
    return DeviceFailedError(f"It failed: {_how(status)}.")


def _how(status: int) -> str:
    if status == -_KILLED:
        return "its process was killed (signal 9), which the system does where memory runs out"
    return f"its process ended with {f'signal {-status}' if status < 0 else f'status {status}'}"


@asynccontextmanager
async def running(plan: WorkerPlan) -> AsyncIterator[Device]:
    """Give a device that is ready, and end it; raises DeviceGivenUpError."""
    try:
        device = Device(plan)
    except OSError as error:
        raise DeviceGivenUpError(
            f"Its process could not be started: {os.strerror(error.errno or 0)}."
        ) from error
    try:
        await device.ready()
        yield device
    finally:
        await device.close()
