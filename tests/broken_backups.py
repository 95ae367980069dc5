"""Backups with something wrong in them whose sums are right, and backups whose writer dies in the middle."""

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Spoil = Callable[[dict[str, bytes], dict[str, Any]], None]
"""Changes the parts of a backup and its manifest."""


def spoil(file: Path, change: Spoil) -> None:
    """Write a backup anew after a change; the sums that it has are right."""
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts.pop("manifest.json"))
    change(parts, manifest)
    if manifest["sha256"]:
        manifest["sha256"] = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
        archive.writestr("manifest.json", json.dumps(manifest))


def one_row(table: str, row: str) -> Spoil:
    def change(parts: dict[str, bytes], manifest: dict[str, Any]) -> None:
        parts[f"tables/{table}.jsonl"] = row.encode() + b"\n"
        manifest["rows"][table] = 1

    return change


EVENT = '{"seq":%s,"kind":"a","subject":"b","at":%s,"data":{}}'
HOSTILE: dict[str, Spoil] = {
    "a row that is no JSON": one_row("events", "no"),
    "a row that is a list": one_row("events", "[1]"),
    "a row nested deep": one_row("events", "[" * 100_000),
    "a number as a moment": one_row("events", EVENT % (1, 5)),
    "no moment": one_row("events", EVENT % (1, '"soon"')),
    "a number beyond all columns": one_row("events", EVENT % (2**80, '"2026-01-01T00:00:00+00:00"')),
    "a column that is not known": one_row("events", '{"theirs":1}'),
    "another schema's name": one_row("alembic_version", '{"version_num":"9999"}'),
    "a key outside": lambda parts, _: parts.update({"keys/../../evil": b"x"}),
    "a key below": lambda parts, _: parts.update({"keys/a/b": b"x"}),
    "a table without a sum": lambda _, manifest: manifest.update(sha256={}),
    "rows without end": lambda _, manifest: manifest["rows"].update(events=float("inf")),
    "a large key": lambda parts, _: parts.update({"keys/large": bytes(2 << 20)}),
    "a large manifest": lambda _, manifest: manifest.update(more="x" * (2 << 20)),
    "fewer rows": lambda _, manifest: manifest["rows"].update(events=1),
}


KILLED = """
import os, pathlib, signal, sys
from gpupool.store.backup import appearing
if sys.argv[2] == "named":
    appearing.os.O_TMPFILE = os.O_DIRECTORY  # As a file system that has no files without a name.
with appearing.appearing(pathlib.Path(sys.argv[1])) as file:
    file.write(b"a key")
    file.flush()
    print("\\n".join(os.listdir(".")), flush=True)
    if sys.stdin.read(1) == "k":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def half_written(path: Path, kind: str) -> "subprocess.Popen[str]":
    """Start writing a file, and return once it has content."""
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, path.name, kind],
        cwd=path.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child
