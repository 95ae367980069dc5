"""Messages through Apprise, which speaks to DingTalk, WeCom, Feishu, Telegram, mail and a hundred more.

Each message is sent by a short-lived process (`apprise_child`), which gets the address on its standard input: an
address is a secret, and a command line can be read by everybody on the machine.
"""

import asyncio
import importlib.util
import json
import os
import re
import sys
from typing import Final

from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.notify.port import NotDeliveredError, Note

SECONDS: Final = 30.0
"""Includes the second that Apprise takes to load, several on a busy machine."""
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+]{1,30})://\S+", re.IGNORECASE)
_MOST_WORDS: Final = 300
_OURS: Final = "GPUPOOL_"


class AppriseNotifier:
    """Sends to one Apprise address."""

    def __init__(self, url: str, seconds: float = SECONDS) -> None:
        """Raise InvalidInputError where ``url`` is no address, EnvironmentProblemError where Apprise is not installed."""
        found = _SCHEME.fullmatch(url)
        if found is None:
            raise InvalidInputError(
                "An Apprise address of the alerts has no form like SERVICE://WHAT-THE-SERVICE-NEEDS.",
                remedy="See docs/how-to/alerts.md for the address of each service.",
            )
        if importlib.util.find_spec("apprise") is None:
            raise EnvironmentProblemError(
                "Alerts are to be sent through Apprise, which is not installed.",
                remedy="Install it: pip install 'gpupool[alerts]'.",
            )
        self.name = f"apprise {found[1].lower()}"
        self._url, self._seconds = url, seconds

    async def send(self, note: Note) -> None:
        """Deliver within the limit of time."""
        wanted = {"url": self._url, "title": note.title, "text": note.text, "tone": note.tone}
        process = await self._start()
        try:
            async with asyncio.timeout(self._seconds):
                _, told = await process.communicate(json.dumps(wanted).encode())
        except TimeoutError as error:
            raise NotDeliveredError(f"{self.name} did not take it within {self._seconds:g} s.") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            words = " ".join(told.decode("utf-8", "replace").split())[-_MOST_WORDS:]
            raise NotDeliveredError(f"{self.name} did not take it: {words or process.returncode}.")

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "gpupool.notify.apprise_child",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if not name.startswith(_OURS)},
            )
        except OSError as error:
            raise NotDeliveredError(f"{self.name} cannot be started: {error.strerror or error}.") from error
