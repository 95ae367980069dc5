"""Control keeps to the API that it publishes: every operation, asked in every way that its description allows and forbids.

A real process answers. No answer may be a server's fault, or of a status, type or form that the description lacks.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gpupool.control.app import build_app
from gpupool.control.http.guard import Tokens
from gpupool.control.pool import Pool
from gpupool.core.clock import SystemClock
from gpupool.core.records import ProcessRecord
from gpupool.fleet.ports.store import Store
from up_run import until

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = 25
"""Requests of each operation, of valid and of invalid data each."""
LONGEST_WAIT = 0
"""Seconds of a long poll here; longer ones are tested elsewhere."""


@dataclass
class Described:
    """A running control with its description."""

    url: str
    document: dict[str, Any]
    headers: dict[str, str]
    join_headers: dict[str, str]


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Described]:
    home = tmp_path_factory.mktemp("described") / "home"
    process = subprocess.Popen(
        [sys.executable, "-m", "gpupool", "control", "serve"],
        env={**os.environ, "GPUPOOL_HOME": str(home), "GPUPOOL_CONTROL_PORT": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        record = until(lambda: ProcessRecord.read(home / "run" / "control.json"), what="a process record")
        operator, join = (read_token(home, name) for name in ("operator", "join"))
        with httpx.Client(trust_env=False) as client:
            document = client.get(f"{record.url}/openapi.json", headers=operator).json()
        yield Described(record.url or "", document, operator, join)
    finally:
        process.terminate()
        assert process.wait(60) == 0


def read_token(home: Path, name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {(home / 'keys' / f'{name}.token').read_text().strip()}"}


class NoStore:
    """Never asked: an application that only describes itself."""


def operations() -> list[tuple[str, str]]:
    """Return method and path of every operation, from the description itself."""
    app = build_app(Pool(cast("Store", NoStore()), SystemClock()), Tokens("a", "b", "c"))
    return [(method.upper(), path) for path, item in app.openapi()["paths"].items() for method in item]


OPERATIONS = operations()


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_answer_is_as_described(control: Described, method: str, path: str) -> None:
    schema = schemathesis.openapi.from_dict(control.document)
    schema.config.update(base_url=control.url)
    operation = schema[path][method]
    headers = control.join_headers if path == "/v1/agent/join" else control.headers

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        if case.query and "wait" in case.query:
            case.query["wait"] = LONGEST_WAIT
        answer = case.call(headers=headers, timeout=20)
        case.validate_response(answer, checks=CHECKS)

    ask()


def test_the_description_is_of_this_very_control(control: Described) -> None:
    described = {
        (method.upper(), path) for path, item in control.document["paths"].items() for method in item
    }
    assert described == set(OPERATIONS)
    assert len(described) > 20
