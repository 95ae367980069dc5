"""The typed client: what it asks, what it makes of answers, and what it says when there is none."""

import json
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpupool.contracts.control import DeployReply, EventView, PoolView, WhyView, WorkloadView
from gpupool.contracts.control_client import ControlClient
from gpupool.contracts.feed import EndpointsView
from gpupool.contracts.problems import problem_of
from gpupool.contracts.spec import SpecFile
from gpupool.core import errors
from gpupool.fleet.workloads import Protocol

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SPEC = SpecFile(name="tiny", command=["serve", "{port}"])
WORKLOAD = WorkloadView(
    id="wl-1",
    name="tiny",
    kind="chute",
    version=1,
    spec=SPEC,
    wanted=1,
    active=0,
    live=0,
    why="no node",
    not_before=None,
    created_at=NOW,
    placements=[],
)


class Scripted(ThreadingHTTPServer):
    """A control that gives one answer and remembers the last question."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: tuple[int, str] = (200, "[]")
        self.pages: list[tuple[str, str]] = []
        self.asked: tuple[str, str] = ("", "")
        self.body = b""
        self.token = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Scripted

    def _answer(self) -> None:
        self.server.asked = (self.command, self.path)
        self.server.token = self.headers["Authorization"]
        self.server.body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        status, text = self.server.answer
        self.send_response(status)
        if self.server.pages:
            text, cursor = self.server.pages.pop(0)
            self.send_header("X-Next-Cursor", cursor)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - the library looks for these names

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Stay quiet."""


@pytest.fixture
def control() -> Iterator[Scripted]:
    with Scripted() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def client(control: Scripted) -> Iterator[ControlClient]:
    with ControlClient(control.url + "/", "secret") as made:
        yield made


def test_reading_the_pool(control: Scripted, client: ControlClient) -> None:
    pool = PoolView(
        version="1",
        instance_id="inst-1",
        started_at=NOW,
        nodes=[],
        devices=[],
        workloads=[WORKLOAD],
        last_event_seq=3,
    )
    control.answer = (200, pool.model_dump_json())
    assert client.pool() == pool
    assert (control.asked, control.token) == (("GET", "/v1/pool"), "Bearer secret")


def test_lists(control: Scripted, client: ControlClient) -> None:
    assert client.nodes() == []
    assert control.asked == ("GET", "/v1/nodes")
    assert client.devices() == []
    assert control.asked == ("GET", "/v1/devices")
    assert client.placements() == []
    assert control.asked == ("GET", "/v1/placements")
    assert client.placements(workload="tiny", live=True) == []
    assert control.asked == ("GET", "/v1/placements?workload=tiny&live=true")
    control.answer = (200, f"[{WORKLOAD.model_dump_json()}]")
    assert client.workloads() == [WORKLOAD]


def test_a_long_list_is_read_page_by_page(control: Scripted, client: ControlClient) -> None:
    control.answer = control.answer[0], f"[{WORKLOAD.model_dump_json()}]"
    second = WORKLOAD.model_copy(update={"id": "wl-2"})
    control.pages = [(f"[{second.model_dump_json()}]", "wl-2")]
    assert client.workloads() == [second, WORKLOAD]
    assert control.asked == ("GET", "/v1/workloads?cursor=wl-2")


def test_scaling_and_asking_why(control: Scripted, client: ControlClient) -> None:
    control.answer = (200, WORKLOAD.model_dump_json())
    assert client.scale_workload("tiny", 3) == WORKLOAD
    assert (control.asked, json.loads(control.body)) == (("POST", "/v1/workloads/tiny/scale"), {"wanted": 3})
    why = WhyView(workload="tiny", why="no node", not_before=None, would_go_to=None, refusals=[])
    control.answer = (200, why.model_dump_json())
    assert client.why("tiny") == why
    assert control.asked == ("GET", "/v1/workloads/tiny/why")


def test_deploying_sends_the_spec_and_reads_what_became_of_it(
    control: Scripted, client: ControlClient
) -> None:
    reply = DeployReply(workload=WORKLOAD, created=True, changed=False)
    control.answer = (201, reply.model_dump_json())
    assert client.deploy(SPEC) == reply
    assert control.asked == ("POST", "/v1/workloads")
    assert SpecFile.model_validate(json.loads(control.body)["spec"]) == SPEC


def test_one_workload_and_its_end(control: Scripted, client: ControlClient) -> None:
    control.answer = (200, WORKLOAD.model_dump_json())
    assert client.workload("tiny") == WORKLOAD
    control.answer = (202, WORKLOAD.model_dump_json())
    client.delete_workload("tiny")
    assert control.asked == ("DELETE", "/v1/workloads/tiny")
    control.answer = (204, "")
    client.delete_workload("../nodes/a?b")
    assert control.asked == ("DELETE", "/v1/workloads/..%2Fnodes%2Fa%3Fb")


def test_logs_events_and_endpoints(control: Scripted, client: ControlClient) -> None:
    control.answer = (200, "one\ntwo é\n")
    assert client.logs("pl-1", lines=2) == "one\ntwo é\n"
    assert control.asked == ("GET", "/v1/placements/pl-1/logs?lines=2")
    event = EventView(seq=4, kind="node_joined", subject="node-1", at=NOW, data={"a": 1})
    control.answer = (200, f"[{event.model_dump_json()}]")
    assert client.events(after=3, limit=5, wait=0.5) == [event]
    assert control.asked == ("GET", "/v1/events?after=3&limit=5&wait=0.5")
    view = EndpointsView(revision=1, workloads=[], endpoints=[])
    control.answer = (200, view.model_dump_json())
    assert client.endpoints(Protocol.RECOMPUTE) == view
    assert control.asked == ("GET", "/v1/endpoints?protocol=recompute")


@pytest.mark.parametrize(
    "sent",
    [
        errors.NotFoundError("There is no workload tiny.", remedy="List them."),
        errors.UnauthorizedError(),
        errors.ConflictError("It is ending."),
        errors.TooLargeError("65 KiB"),
        errors.BusyError(),
    ],
)
def test_a_problem_becomes_the_error_that_control_meant(
    control: Scripted, client: ControlClient, sent: errors.GpupoolError
) -> None:
    control.answer = (sent.status, problem_of(sent).model_dump_json())
    with pytest.raises(type(sent)) as caught:
        client.workload("tiny")
    assert (caught.value.code, caught.value.message, caught.value.remedy) == (
        sent.code,
        sent.message,
        sent.remedy,
    )


@pytest.mark.parametrize(
    "answer", [(500, "oops"), (302, ""), (200, "<html>"), (200, '{"version": 1}'), (200, "")]
)
def test_an_answer_that_is_not_controls_is_unavailable(
    control: Scripted, client: ControlClient, answer: tuple[int, str]
) -> None:
    control.answer = answer
    with pytest.raises(errors.UnavailableError):
        client.pool()


def test_nobody_there_says_how_to_start(free_port: int) -> None:
    with (
        ControlClient(f"http://127.0.0.1:{free_port}", "t") as client,
        pytest.raises(errors.UnavailableError) as caught,
    ):
        client.pool()
    assert str(free_port) in caught.value.message
    assert "gpupool up" in caught.value.remedy


def test_a_silent_control_is_given_up() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        ControlClient(f"http://127.0.0.1:{silent.getsockname()[1]}", "t", answer_seconds=0.05) as client,
        pytest.raises(errors.DeadlineError, match="did not answer within"),
    ):
        client.pool()


@pytest.mark.parametrize("url", ["http://[::1", "nowhere", "ftp://127.0.0.1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises((errors.InvalidInputError, errors.UnavailableError)):
        ControlClient(url, "t").pool()
