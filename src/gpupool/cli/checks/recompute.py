"""The checks of ``gpupool recompute doctor``: the mistakes that people make on a farm's side, found one by one."""

import asyncio
import difflib
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from gpupool import __version__
from gpupool.cli.checks.finding import Finding, failed, passed, warned
from gpupool.core.errors import GpupoolError
from gpupool.recompute.addresses import Address, format_address
from gpupool.recompute.client.checking import check_host
from gpupool.recompute.client.contact import Contact, Found, contact
from gpupool.recompute.client.credentials import Credentials
from gpupool.recompute.client.hosts import Host
from gpupool.recompute.tls_words import ASK_OVER_TLS, ASK_PLAINLY
from gpupool.recompute.variables import NAMES, PREFIX, ChiaposVariables

_LOW_RETRY_S: Final = 10.0
_MOST_OFFSET: Final = timedelta(seconds=5)
_KINDS_HEADER: Final = "x-gpupool-kinds"
_REMEDIES: Final[Mapping[Found, str]] = {
    Found.NO_NAME: "Correct the name, or write the IP address instead.",
    Found.CLOSED: "Start the server there with --host 0.0.0.0 (by default it listens to its own machine only), and "
    "check the port.",
    Found.NO_WAY: "Open the port in the firewall of that machine (TCP), and check that this machine has a route to it.",
    Found.NOT_TRUSTED: "Give the authority that signed the server's certificate with --tls-ca FILE.",
    Found.WANTS_TLS: ASK_OVER_TLS,
    Found.WANTS_PLAIN: ASK_PLAINLY,
    Found.GIGAHORSE: "Leave it to Gigahorse harvesters, or run `gpupool recompute serve` for this client.",
    Found.STRANGER: "Correct the port, or end what listens there.",
    Found.WANTS_CERTIFICATE: "Show one of the authority in its --client-ca, with its key: --tls-cert and --tls-key.",
    Found.LOCKED: "Give the server's token with --token-file FILE, or GPUPOOL_CLIENT_TOKEN_FILE.",
    Found.NOT_LET_IN: "Copy a token of its list into this side's token file, whose first line is shown; it may have "
    "been renewed there.",
}


def check_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what the variables of this process say, and what nobody reads."""
    known = {PREFIX + name for name in NAMES}
    for name in sorted(environment):
        if name.upper().startswith(PREFIX) and name not in known:
            yield _unread(name, known)
    try:
        variables = ChiaposVariables.from_environment(environment)
    except GpupoolError as error:
        yield failed("variables", "not valid", error.message, error.remedy)
        return
    if not variables.recompute_hosts:
        yield warned(
            "variables",
            f"{PREFIX}RECOMPUTE_HOST is not set",
            "A harvester started from here asks no server.",
            "Set it in the same terminal or script that starts the harvester: see `gpupool recompute env`.",
        )
    else:
        names = ", ".join(Host(*address).name for address in variables.recompute_hosts)
        yield passed("variables", f"hosts {names}; one request may take {variables.recompute_timeout_s:g} s")
    if variables.recompute_retry_interval_s < _LOW_RETRY_S:
        yield warned(
            "retry interval",
            f"{variables.recompute_retry_interval_s:g} s",
            "A failed host is asked again so often that look-ups wait for it.",
            f"Remove {PREFIX}RECOMPUTE_RETRY_INTERVAL; the default is 100.",
        )


def _unread(name: str, known: set[str]) -> Finding:
    meant = difflib.get_close_matches(name.upper(), sorted(known), n=1)
    remedy = f"Rename it to {meant[0]}." if meant else "Remove it, or check its name."
    return failed("variables", name, "Nothing reads a variable of this name.", remedy)


async def check_hosts(
    hosts: Sequence[Host], variables: ChiaposVariables, credentials: Credentials
) -> list[Finding]:
    """Return the findings about every host, all asked at once."""
    found = await asyncio.gather(*(_check_one(host, variables, credentials) for host in hosts))
    return [finding for findings in found for finding in findings]


async def _check_one(host: Host, variables: ChiaposVariables, credentials: Credentials) -> list[Finding]:
    seconds = variables.recompute_connect_timeout_s
    met = await contact(host, seconds, credentials)
    findings = list(judge_contact(met, datetime.now(UTC)))
    findings += other_ports(met, variables.recompute_hosts)
    if met.view is None or not met.view.levels or findings[0].verdict == "fail":
        return findings
    checked = await check_host(
        host, min(met.view.levels), variables.recompute_timeout_s, seconds, credentials
    )
    name = f"{host.name} proof"
    if checked.error is not None:
        findings.append(
            failed(name, f"after {checked.seconds:.1f} s", checked.error.message, checked.error.remedy)
        )
    else:
        findings.append(passed(name, f"right, in {checked.seconds * 1000:.0f} ms"))
    return findings


def other_ports(met: Contact, listed: Sequence[Address]) -> Iterator[Finding]:
    """Yield a hint where nothing of use is at an address, and the variables list its host under another port."""
    ports = [str(port) for name, port in listed if name == met.host.host and port != met.host.port]
    if met.view is None and ports and (met.host.host, met.host.port) not in listed:
        yield warned(
            f"{met.host.name} port",
            f"{PREFIX}RECOMPUTE_HOST lists this host with port {', '.join(ports)}",
            f"Port {met.host.port} was asked here.",
            f"Name the port, as {format_address((met.host.host, int(ports[0])))}, or correct the variable.",
        )


def own_address() -> str | None:
    """Return the IPv4 address by which others reach this machine; None where it has none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def check_reach(port: int, address: str, seconds: float) -> Finding:
    """Tell whether this machine's own server can be reached by others: it may listen to its own machine only."""
    name = f"127.0.0.1:{port} reach"
    try:
        socket.create_connection((address, port), seconds).close()
    except OSError:
        return warned(
            name,
            f"not at {address}, only from this machine",
            "Harvesters on other machines cannot reach it.",
            "Start it with --host 0.0.0.0, unless all its harvesters are on this machine.",
        )
    return passed(name, f"at {address} too; whether a firewall is in the way shows only from the harvester")


def judge_contact(met: Contact, now: datetime) -> Iterator[Finding]:
    """Yield what a host's first words tell: first whether it can be used, then version and clock."""
    name = met.host.name
    if met.view is None:
        measured = f"{met.found}: {met.detail}" if met.detail else met.found.value
        yield failed(
            name, measured, "No look-up gets an answer from this host.", met.remedy or _REMEDIES[met.found]
        )
        return
    kinds = met.headers.get(_KINDS_HEADER)
    if kinds is not None and "http" not in kinds.split(","):
        yield failed(
            name,
            f"a proxy in front of {kinds or 'nothing'}",
            "No server behind it answers this client, which needs one of ours.",
            "Add a node that runs `gpupool recompute serve`.",
        )
    elif met.view.state != "ready":
        yield warned(
            name, f"it is {met.view.state}", "It takes no look-ups now.", "Wait, or look into its log."
        )
    elif kinds is not None and not met.view.levels:
        yield failed(
            name,
            "a proxy none of whose servers answers it",
            "No look-up gets an answer from this host.",
            "Ask `gpupool recompute nodes list` on the proxy's machine why, and look into its log.",
        )
    else:
        levels = ", ".join(f"C{level}" for level in met.view.levels)
        yield passed(name, f"{'a proxy' if kinds is not None else 'a server'}, ready, levels {levels}")
    if met.view.version != __version__:
        yield warned(
            f"{name} version",
            f"{met.view.version} there, {__version__} here",
            "Versions that differ are not tested together.",
            "Upgrade the older one.",
        )
    yield from _check_clock(name, met.headers.get("date"), now)


def _check_clock(name: str, date: str | None, now: datetime) -> Iterator[Finding]:
    if date is None:
        return
    try:
        offset = parsedate_to_datetime(date) - now
    except (TypeError, ValueError):
        return
    if abs(offset) > _MOST_OFFSET:
        yield warned(
            f"{name} clock",
            f"{offset.total_seconds():+.0f} s against this machine",
            "One of the clocks is wrong; farming and logs need the right time.",
            "Turn on time synchronisation on both machines.",
        )
    else:
        yield passed(f"{name} clock", "the same as here")
