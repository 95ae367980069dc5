"""One question with a known answer to one host, asked once: what `check` and `doctor` do.

The answer is compared with the known one, so nothing has to be computed here and numba is not needed.
"""

import asyncio
from dataclasses import dataclass

from gpupool.core.errors import DeadlineError, GpupoolError, UnavailableError
from gpupool.recompute.client.credentials import Credentials
from gpupool.recompute.client.hosts import Host
from gpupool.recompute.client.link import Link
from gpupool.recompute.client.questions import question_of
from gpupool.recompute.client.trouble import Follows, HostTroubleError
from gpupool.recompute.demo import demo_request, known_proof


class WrongRecoveryError(GpupoolError):
    """The host answered with another proof than the one that was truncated."""

    code = "wrong_recovery"
    default_remedy = "Take this server out of use and report it with its log."


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of it."""

    host: Host
    seconds: float
    error: GpupoolError | None
    """None: the proof came back complete and right."""


async def check_host(
    host: Host, level: int, seconds: float, connect_s: float, credentials: Credentials
) -> Checked:
    """Have ``host`` recover the shipped proof, truncated to ``level``, within ``seconds``."""
    link = Link(connect_s, token=credentials.token, tls=credentials.tls)
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        error = await _error_of(link, host, level, seconds)
        return Checked(host, loop.time() - began, error)
    finally:
        await link.close()


async def _error_of(link: Link, host: Host, level: int, seconds: float) -> GpupoolError | None:
    question = question_of(demo_request(level))
    try:
        async with asyncio.timeout(seconds):
            xs = await link.ask(host, question, question.request_id, seconds)
    except TimeoutError:
        return DeadlineError(f"{host.url} stayed silent for {seconds:g} s.")
    except HostTroubleError as trouble:
        if trouble.follows is Follows.DOUBT:
            return WrongRecoveryError(f"{host.url} did not find the proof: it {trouble.reason}.")
        if trouble.error is not None:
            return trouble.error
        return UnavailableError(
            f"{host.url} {trouble.reason}.",
            remedy="Run `gpupool recompute doctor` with this host; it says more.",
        )
    return None if xs == known_proof().xs else WrongRecoveryError()
