"""``alerts.yaml``: whom to tell, in the state folder of control and, for the dead-man's switch, of an agent.

It holds secrets (the addresses of chats), so only its owner may read it, and no error repeats what stands in it.
"""

import os
import stat
from pathlib import Path
from typing import Annotated, Final, Literal, TypedDict

from pydantic import Field, SecretStr, StringConstraints, ValidationError, model_validator

from gpupool.contracts.base import Input, Name
from gpupool.contracts.problems import describe
from gpupool.contracts.spec_text import MalformedSpecError, read_text
from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.core.home import Home

MOST_TARGETS: Final = 20
_Seconds = Annotated[float, Field(ge=0, le=86_400)]


class Way(TypedDict):
    """One of these is given."""

    apprise: str | None
    command: Path | None
    url: str | None


class Target(Input):
    """Somebody to tell: exactly one of ``apprise``, ``command`` and ``url``."""

    name: Name
    apprise: SecretStr | None = None
    """An Apprise address, such as ``dingtalk://…``."""
    command: Path | None = None
    """A program; gets each message as JSON on its standard input."""
    url: SecretStr | None = None
    """An address that takes JSON by POST: https, or http on this machine."""
    least: Literal["warning", "critical"] = "warning"
    """What is less severe is not sent here."""

    def way(self) -> Way:
        """Return the one way to tell it, in clear."""
        return {
            "apprise": self.apprise.get_secret_value() if self.apprise else None,
            "command": self.command,
            "url": self.url.get_secret_value() if self.url else None,
        }

    @model_validator(mode="after")
    def _one_way(self) -> "Target":
        if sum(way is not None for way in (self.apprise, self.command, self.url)) != 1:
            raise ValueError("takes exactly one of apprise, command and url")
        return self


class AlertFile(Input):
    """Everything that ``alerts.yaml`` may say."""

    targets: Annotated[list[Target], Field(max_length=MOST_TARGETS)] = []
    group_seconds: _Seconds = 10.0
    """The first alarm of a message waits so long for others."""
    distance_seconds: _Seconds = 60.0
    """Between two messages."""
    repeat_hours: Annotated[float, Field(ge=0, le=8760)] = 12.0
    """An alarm that lasts is told again after so long; 0: never."""
    holds: dict[Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}$")], _Seconds] = {}
    """Rule -> seconds that its trouble must last before it is told, where its default does not fit."""
    control_silent_minutes: Annotated[float, Field(gt=0, le=1440)] = 5.0
    """An agent that cannot reach control for longer says so (the dead-man's switch)."""

    @model_validator(mode="after")
    def _names_differ(self) -> "AlertFile":
        names = [target.name for target in self.targets]
        if len(set(names)) < len(names):
            raise ValueError("two targets have the same name")
        return self


def load_alert_file(home: Home, urls: SecretStr | None = None) -> AlertFile:
    """Return what ``alerts.yaml`` says, and targets for ``urls``: Apprise addresses between blanks.

    No file: the defaults. Raises InvalidInputError where it is not valid, EnvironmentProblemError where it cannot be
    read or others than its owner can read it.
    """
    path = home.alerts
    text = _read(path)
    try:
        found = (
            AlertFile()
            if text is None
            else AlertFile.model_validate(read_text(text, str(path), frozenset()).value)
        )
        extra = [
            Target(name=f"url-{number}", apprise=SecretStr(url))
            for number, url in enumerate(urls.get_secret_value().split() if urls else (), 1)
        ]
        return AlertFile(**{**dict(found), "targets": [*found.targets, *extra]})
    except MalformedSpecError as error:
        raise InvalidInputError(error.message, remedy=_REMEDY) from error
    except ValidationError as error:
        raise InvalidInputError(f"{path}: {describe(error)}.", remedy=_REMEDY) from None


_REMEDY: Final = "Correct the file, then start again; docs/how-to/alerts.md shows a whole one."


def _read(path: Path) -> str | None:
    try:
        # A pipe in its place is refused instead of being waited for.
        with open(
            path, encoding="utf-8", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode) or mode & 0o077:
                raise EnvironmentProblemError(
                    f"The file {path} holds secrets, and others than its owner may read it.",
                    remedy=f"Run `chmod 600 {path}`.",
                )
            return file.read(64 * 1024 + 1)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise EnvironmentProblemError(
            f"The file {path} cannot be read: {why}.", remedy="Mend its rights, or move it away."
        ) from error
