"""A file of nodes to be added: CSV with a header, or YAML with a list, checked whole before anything is done."""

import csv
import io
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import Field, StringConstraints, ValidationError

from gpupool.contracts.base import Input, Name
from gpupool.contracts.nodes import HourlyUsd, Region, ShortRef
from gpupool.contracts.problems import describe
from gpupool.core.errors import InvalidInputError, NotFoundError, TooLargeError

MAX_BYTES: Final = 1024 * 1024
MAX_ENTRIES: Final = 1000


class MalformedNodesError(InvalidInputError):
    """The file of nodes is not valid."""

    code = "malformed_nodes"
    default_remedy = "Correct the file and run the command again; nothing was done."


class NodeEntry(Input):
    """One node of the file."""

    name: Name
    hourly_usd: HourlyUsd | None = None
    region: Region | None = None
    short_ref: ShortRef | None = None
    address: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.:_-]{1,253}$")] | None = Field(
        default=None
    )
    """Where gateway and proxy reach it; left out, its first own address."""


def read_nodes(file: Path) -> list[NodeEntry]:
    """Return the nodes in a file; raise MalformedNodesError naming the entry that is wrong."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {file}.", remedy="Check the path.") from error
    except OSError as error:
        raise InvalidInputError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise MalformedNodesError(f"{file} is not UTF-8 text (byte {error.start}).") from error
    if len(raw) > MAX_BYTES:
        raise TooLargeError(f"{file} is larger than {MAX_BYTES} bytes.")
    entries = _csv(text, file) if file.suffix.lower() == ".csv" else _yaml(text, file)
    if not 0 < len(entries) <= MAX_ENTRIES:
        raise MalformedNodesError(f"{file} has {len(entries)} nodes; it takes 1 to {MAX_ENTRIES}.")
    return _checked(entries, file)


def _csv(text: str, file: Path) -> list[Any]:
    try:
        rows = list(csv.DictReader(io.StringIO(text), strict=True, skipinitialspace=True))
    except csv.Error as error:
        raise MalformedNodesError(f"{file} is no CSV that can be read: {error}.") from error
    if any(None in row for row in rows):
        raise MalformedNodesError(f"{file}: a line has more fields than the header.")
    return [
        {key.strip(): value.strip() for key, value in row.items() if (value or "").strip()} for row in rows
    ]


def _yaml(text: str, file: Path) -> list[Any]:
    try:
        value = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise MalformedNodesError(f"{file}{line}: no YAML that can be read ({error.problem}).") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise MalformedNodesError(f"{file}: not YAML ({type(error).__name__}).") from error
    if not isinstance(value, list):
        raise MalformedNodesError(
            f'{file}: a list is expected, with an entry such as "- name: gpu-1" a node.'
        )
    return value


def _checked(entries: list[Any], file: Path) -> list[NodeEntry]:
    found: dict[str, NodeEntry] = {}
    for number, entry in enumerate(entries, 1):
        try:
            node = NodeEntry.model_validate(entry)
        except ValidationError as error:
            raise MalformedNodesError(f"{file}, node {number}: {describe(error)}.") from error
        if node.name in found:
            raise MalformedNodesError(f"{file}, node {number}: {node.name} stands there a second time.")
        found[node.name] = node
    return list(found.values())
