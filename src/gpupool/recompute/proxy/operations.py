"""What surrounds the traffic of a running proxy: rates, history, alerts, and the admin interface with its state.

One job looks once a second. Of several proxies that have one port after another (a restart, a takeover) one at a time
owns the state folder: the old one writes its history and lets go when it begins to leave, the new one takes over what
is there as soon as nobody answers at the recorded admin interface any more.
"""

import asyncio
import os
import secrets
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from gpupool.core.errors import EnvironmentProblemError, GpupoolError
from gpupool.recompute.proxy import memory, orders
from gpupool.recompute.proxy.admin import Admin
from gpupool.recompute.proxy.admin_http import AdminServer
from gpupool.recompute.proxy.admin_record import AdminRecord
from gpupool.recompute.proxy.alert_rules import troubles
from gpupool.recompute.proxy.alerting import Alerting
from gpupool.recompute.proxy.report import Report
from gpupool.recompute.proxy.state_folder import open_folder, remove_folder

if TYPE_CHECKING:
    from gpupool.notify.hooks import Hook
    from gpupool.recompute.proxy.proxying import ProxyCore
    from gpupool.recompute.proxy.settings import ProxySettings

LOOK_SECONDS: Final = 1.0
SAVE_SECONDS: Final = 300.0
LOST_SECONDS: Final = 60
"""Lookups without an answer are told for so long after the last one."""
log = structlog.get_logger(__name__)


class Operations:
    """One for each proxy; made before its nodes are named, so that what was said of them by command counts at once."""

    def __init__(self, core: "ProxyCore", port: int) -> None:
        """``port`` is the one clients connect to. Raises InvalidInputError where an alert hook can't be used."""
        self._core = core
        self._port = port
        self._report = Report(core)
        about = {"port": port, "instance_id": core.instance_id}
        self._alerting = Alerting(hooks_of(core.settings), about)
        self._state = self._open_state() if core.settings.keep_state else None
        self._failures: deque[int] = deque(maxlen=LOST_SECONDS + 1)
        self._looked = core.clock()
        self._minute = int(time.time()) // 60

    def _open_state(self) -> "State | None":
        try:
            return State(self._core, open_folder(self._port), self._report, self._alerting, self._port)
        except EnvironmentProblemError as error:
            log.warning(
                "no_state_folder",
                why=error.message,
                remedy="Name a folder that this user may write with GPUPOOL_HOME; until then no command reaches this"
                " proxy, and its history ends with it.",
            )
            return None

    async def run(self) -> None:
        """Look until cancelled."""
        delivering = asyncio.create_task(self._alerting.run())
        try:
            while True:
                if self._state is not None:
                    await self._state.look()
                await asyncio.sleep(LOOK_SECONDS)
                self.look(self._core.clock(), time.time())
        finally:
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)
            if self._state is not None:
                await self._state.close()

    def look(self, now: float, wall: float) -> None:
        """Follow rates, end a minute where one has passed, and tell what is wrong."""
        core, tallies = self._core, self._core.tallies
        for node in core.directory.nodes.values():
            if node.failed > node.failed_counted:
                tallies.failed_attempts(node.name, node.failed - node.failed_counted)
                node.failed_counted = node.failed
        tallies.second(max(0.001, now - self._looked))
        self._looked = now
        if int(wall) // 60 != self._minute:
            tallies.minute(self._minute * 60)
            self._minute = int(wall) // 60
        self._failures.append(sum(tally.failed for tally in tallies.kinds.values()))
        if not core.draining:
            silent = tallies.silent(now, core.began)
            lost = self._failures[-1] - self._failures[0]
            shims = {name: tally.shim for name, tally in tallies.clients.items() if tally.shim is not None}
            harvesters = {name: why for name, shim in shims.items() if (why := shim.trouble(now))}
            found = troubles(
                self._report.nodes(), set(tallies.kinds), silent, lost, harvesters, core.control_trouble()
            )
            self._alerting.look(found, now, wall)


class State:
    """The state folder, while this proxy owns it."""

    def __init__(
        self, core: "ProxyCore", folder: Path, report: Report, alerting: Alerting, port: int
    ) -> None:
        self._core = core
        self._folder = folder
        self._port = port
        self._orders = orders.Orders(folder / orders.FILE, core.directory, core.keyring.check)
        self._memory = memory.Memory(folder / memory.FILE, core.tallies)
        self._admin = Admin(core, report, self._orders, alerting, port)
        self._token = secrets.token_urlsafe(32)
        self._server = AdminServer(self._token, self._admin.answer)
        self._admin_port = 0
        self._record: AdminRecord | None = None
        self._saved = core.clock()
        self._has_loaded = False
        self._refused = ""

    async def look(self) -> None:
        """Take the folder if it is free, let go of it when about to stop, and save now and then."""
        if self._record is None:
            if not self._core.draining:
                await self._try_to_own()
        elif self._core.draining:
            await self.let_go()
        elif self._core.clock() - self._saved >= SAVE_SECONDS:
            await self._save()

    async def _try_to_own(self) -> None:
        other = AdminRecord.read(self._folder)
        if other is not None and await _answers(other):
            self._tell_once(f"a proxy with pid {other.pid} has it")
            return
        try:
            await self._own()
        except (OSError, GpupoolError) as error:
            self._tell_once(error.message if isinstance(error, GpupoolError) else str(error))

    async def _own(self) -> None:
        if not self._admin_port:
            self._admin_port = await self._server.start()
        self._orders.read()
        if not self._has_loaded:
            self._has_loaded = True
            memory.load(self._folder / memory.FILE, self._core.tallies)
        record = AdminRecord(
            instance_id=self._core.instance_id,
            pid=os.getpid(),
            public_port=self._port,
            host="127.0.0.1",
            port=self._admin_port,
            token=self._token,
        )
        record.write(self._folder)
        self._record, self._saved, self._refused = record, self._core.clock(), ""
        log.info("proxy_takes_commands", folder=str(self._folder))

    def _tell_once(self, why: str) -> None:
        if why != self._refused:
            self._refused = why
            log.info("state_folder_waited_for", folder=str(self._folder), why=why)

    async def _save(self) -> None:
        self._saved = self._core.clock()
        await self._memory.save(time.time(), self._core.clock())

    async def let_go(self) -> None:
        """Write the history, then leave the folder to whoever comes next."""
        if self._record is None:
            return
        # The end of the process may cut this short; it is then done again from the beginning.
        self._core.tallies.minute(time.time())
        await self._save()
        self._record.remove(self._folder)
        self._record = None

    async def close(self) -> None:
        """Let go, and answer no command any more."""
        await self.let_go()
        await self._server.close()
        if self._core.settings.tcp and self._core.settings.port == 0:
            # Nobody finds a port again that was given by chance.
            remove_folder(self._folder)


async def _answers(record: AdminRecord) -> bool:
    """Tell whether the proxy that wrote ``record`` still listens for commands."""
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(record.host, record.port)
            try:
                head = f"GET /v1/alerts HTTP/1.1\r\nAuthorization: Bearer {record.token}\r\n\r\n"
                writer.write(head.encode())
                return (await reader.readline()).split()[1:2] == [b"200"]
            finally:
                writer.transport.abort()
    except (OSError, ValueError, OverflowError, TimeoutError):
        return False  # nobody, or what the record holds is no address


def hooks_of(settings: "ProxySettings") -> "list[Hook]":
    """Return the alert hooks that the settings name; raise InvalidInputError where one can't be used."""
    if not (settings.alert_command or settings.alert_url):
        return []
    from gpupool.notify.hooks import CommandHook, UrlHook

    hooks: list[Any] = []
    if settings.alert_command is not None:
        hooks.append(CommandHook(settings.alert_command))
    if settings.alert_url is not None:
        hooks.append(UrlHook(settings.alert_url))
    return hooks
