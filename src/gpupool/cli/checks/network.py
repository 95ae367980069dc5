"""Ports and answers: who holds our ports, and whether what answers there is really ours."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gpupool.cli.checks.finding import Finding, failed, passed, warned
from gpupool.cli.local import LocalProcess, LocalState
from gpupool.core.ports import port_holder, port_is_free

ANSWER_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back from one GET; ``fault`` says why nothing did."""

    status: int = 0
    instance_id: str | None = None
    date: str | None = None
    """The ``Date`` header."""
    fault: str | None = None


Ask = Callable[[str], Answer]


def ask(url: str) -> Answer:
    """GET an address, without proxies, within `ANSWER_SECONDS`."""
    import httpx

    try:
        reply = httpx.get(url, timeout=ANSWER_SECONDS, trust_env=False)
    except httpx.TimeoutException:
        return Answer(fault=f"no answer within {ANSWER_SECONDS:g} s")
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return Answer(fault=str(error) or type(error).__name__)
    try:
        body: Any = reply.json()
    except ValueError:
        body = None
    instance = body.get("instance_id") if isinstance(body, dict) else None
    return Answer(
        status=reply.status_code,
        instance_id=instance if isinstance(instance, str) else None,
        date=reply.headers.get("date"),
    )


def check_port(role: str, given: str, option: str) -> Finding:
    """Tell whether ``role``, which does not run now, could have the port that it is ``given``."""
    name = f"port of {role}"
    if not given.isdecimal() or not 0 < int(given) < 65536:
        return failed(name, repr(given), "That is no port.", f"Give a number from 1 to 65535 with {option}.")
    port = int(given)
    if port_is_free(port):
        return passed(name, f"{port} is free")
    holder = port_holder(port) or "a process of another user"
    return warned(
        name,
        f"{port} is held by {holder}",
        f"{role} could not start on it.",
        f"End that process, or choose another port with {option}.",
    )


def check_answer(process: LocalProcess, get: Ask = ask) -> Finding:
    """Tell whether a process that runs and listens answers as itself, and is ready."""
    name = f"{process.name} answers"
    if process.state is not LocalState.RUNNING:
        return passed(name, "it does not run")
    if process.address is None:
        return passed(name, "it does not listen")
    alive = get(f"{process.address}/healthz")
    if alive.fault is not None:
        return failed(
            name,
            process.address,
            f"It runs (pid {process.pid}) and does not answer: {alive.fault}.",
            f"Look at its log; when it hangs, end it with `kill {process.pid}` and it is started again.",
        )
    if alive.instance_id != process.instance_id:
        return failed(
            name,
            process.address,
            f"Something else answers there ({port_holder(_port(process.address)) or 'unknown process'}).",
            "End what holds the port, then start the pool again.",
        )
    ready = get(f"{process.address}/readyz")
    if ready.status != 200:
        return warned(
            name,
            f"{process.address}, alive",
            f"It is not ready: {ready.fault or f'/readyz answers {ready.status}'}.",
            "Wait a moment and look again; its log says what it waits for.",
        )
    return passed(name, f"{process.address}, ready")


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
