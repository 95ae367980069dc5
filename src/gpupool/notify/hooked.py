"""Messages as JSON to a program of the operator or to a web address, through the hooks that the proxy uses as well."""

from pathlib import Path

from gpupool.notify.hooks import SECONDS, CommandHook, Hook, HookError, UrlHook
from gpupool.notify.port import NotDeliveredError, Note


class HookNotifier:
    """Gives messages to a hook."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self.name = hook.name

    async def send(self, note: Note) -> None:
        """Deliver as one line of JSON."""
        try:
            await self._hook.send(note.as_json())
        except HookError as error:
            raise NotDeliveredError(f"The {self.name} did not take the message: {error}.") from error


def to_command(program: Path, seconds: float = SECONDS) -> HookNotifier:
    """Return what starts ``program`` for each message; raise InvalidInputError where it can't be started."""
    return HookNotifier(CommandHook(program, seconds))


def to_url(url: str, seconds: float = SECONDS) -> HookNotifier:
    """Return what posts to ``url``; raise InvalidInputError where that is not https, nor http to this machine."""
    return HookNotifier(UrlHook(url, seconds))
