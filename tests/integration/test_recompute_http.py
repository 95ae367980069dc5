"""The recompute API over real HTTP: every answer and every refusal, with a scripted engine behind it."""

import asyncio
import json
import struct

import aiohttp
import pytest

from gpupool.contracts.recompute import BODY_LIMIT, ProofReply, RecomputeServerView
from gpupool.pos.errors import NoProofError
from gpupool.recompute.demo import demo_request, known_proof, quality_request
from gpupool.recompute.server.engine import WrongAnswerError
from polling import eventually
from recompute_stage import ScriptedEngine, Stage, stage

PROOF = demo_request().model_dump_json()
QUALITY = quality_request(known_proof()).model_dump_json()


def changed(**fields: object) -> str:
    """The proof request with other fields."""
    return json.dumps({**json.loads(PROOF), **fields})


def without(name: str) -> str:
    return json.dumps({key: value for key, value in json.loads(PROOF).items() if key != name})


async def test_a_proof_is_64_numbers_in_order() -> None:
    engine = ScriptedEngine()
    async with stage(engine) as s:
        status, body = await s.post("/v1/proofs", PROOF)
        reply = ProofReply.model_validate(body)
        assert (status, reply.numbers(), reply.checked) == (200, known_proof().xs, "challenge")
    question = engine.asked[0]
    assert (question.plot_id, question.level, question.bits) == (known_proof().plot_id, 3, 18)
    assert question.challenge == known_proof().challenge


async def test_bits_may_be_given_instead_of_a_level() -> None:
    engine = ScriptedEngine()
    async with stage(engine) as s:
        assert (await s.post("/v1/proofs", changed(level=None, bits=20)))[0] == 200
    assert engine.asked[0].level == 5


async def test_without_a_challenge_the_reply_says_what_was_checked() -> None:
    async with stage(ScriptedEngine()) as s:
        status, body = await s.post("/v1/proofs", without("challenge"))
        assert (status, body["checked"]) == (200, "tables")


async def test_a_quality_is_two_numbers() -> None:
    async with stage(ScriptedEngine()) as s:
        status, body = await s.post("/v1/qualities", QUALITY)
        assert (status, body["checked"]) == (200, "tables")
        assert body["x"] == [f"{x:x}" for x in known_proof().xs[:2]]


@pytest.mark.parametrize(
    ("path", "body", "count", "checked"),
    [
        ("/v1/proofs", PROOF, 64, "challenge"),
        ("/v1/proofs", without("challenge"), 64, "tables"),
        ("/v1/qualities", QUALITY, 2, "tables"),
    ],
)
async def test_an_answer_may_be_plain_numbers(path: str, body: str, count: int, checked: str) -> None:
    async with stage(ScriptedEngine()) as s:
        headers = {"Accept": "application/octet-stream"}
        async with s.http.post(s.url + path, data=body, headers=headers) as answer:
            assert answer.content_type == "application/octet-stream"
            assert answer.headers["X-Checked"] == checked
            assert struct.unpack(f">{count}I", await answer.read()) == known_proof().xs[:count]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("", "input"),
        ("{", "JSON"),
        ("[]", "input"),
        ("\xff\xfe", "input"),
        (without("plot_id"), "plot_id"),
        (changed(plot_id="zz" * 32), "plot_id"),
        (changed(plot_id="ab" * 31), "plot_id"),
        (changed(challenge="ab"), "challenge"),
        (without("line_points"), "line_points"),
        (changed(line_points=["1"] * 31), "line_points"),
        (changed(line_points=["1"] * 33), "line_points"),
        (changed(line_points=["x"] * 32), "line_points"),
        (changed(line_points=["-1"] * 32), "line_points"),
        (changed(line_points=["1" * 17] * 32), "line_points"),
        (changed(line_points=[1] * 32), "line_points"),
        (changed(level=None), "level or bits"),
        (changed(bits=18), "level or bits"),
        (changed(level="high"), "level"),
        (changed(k="32 or so"), "k"),
    ],
)
async def test_what_is_malformed_is_refused(body: str, word: str) -> None:
    engine = ScriptedEngine()
    async with stage(engine) as s:
        status, problem = await s.post("/v1/proofs", body.encode("latin-1"))
        assert (status, problem["code"]) == (400, "invalid_input")
        assert word in str(problem["detail"])
        assert problem["remedy"]
    assert engine.asked == []


@pytest.mark.parametrize("count", [0, 3, 32])
async def test_a_quality_has_one_or_two_line_points(count: int) -> None:
    body = json.dumps({**json.loads(QUALITY), "line_points": ["1"] * count})
    async with stage(ScriptedEngine()) as s:
        assert (await s.post("/v1/qualities", body))[0] == 400


async def test_a_quality_needs_the_challenge() -> None:
    body = json.dumps({**json.loads(QUALITY), "challenge": None})
    async with stage(ScriptedEngine()) as s:
        status, problem = await s.post("/v1/qualities", body)
        assert status == 400
        assert "challenge" in str(problem["detail"])


@pytest.mark.parametrize(
    "fields",
    [
        {"k": 41}, {"k": 18}, {"k": 17}, {"k": 0}, {"level": 0}, {"level": 8}, {"level": -1},
        {"level": None, "bits": 25}, {"level": None, "bits": -1}, {"level": None, "bits": 0},
    ],
)  # fmt: skip
async def test_other_plots_are_not_supported(fields: dict[str, object]) -> None:
    async with stage(ScriptedEngine()) as s:
        status, problem = await s.post("/v1/proofs", changed(**fields))
        assert (status, problem["code"]) == (422, "unsupported")


async def test_numbers_of_more_than_32_bits_take_eight_bytes_in_a_binary_answer() -> None:
    async with stage(ScriptedEngine()) as s:
        headers = {"Accept": "application/octet-stream"}
        async with s.http.post(s.url + "/v1/proofs", data=changed(k=33), headers=headers) as answer:
            body = await answer.read()
        assert tuple(int.from_bytes(body[i : i + 8], "big") for i in range(0, 512, 8)) == known_proof().xs


async def test_a_body_over_the_limit_is_refused() -> None:
    async with stage(ScriptedEngine()) as s:
        status, problem = await s.post("/v1/proofs", PROOF + " " * (BODY_LIMIT + 1))
        assert (status, problem["code"]) == (413, "too_large")
        assert (await s.post("/v1/proofs", PROOF + " " * (BODY_LIMIT - len(PROOF))))[0] == 200


async def test_no_proof_is_404_with_its_own_code() -> None:
    engine = ScriptedEngine()
    engine.fault = NoProofError()
    async with stage(engine) as s:
        status, problem = await s.post("/v1/proofs", PROOF)
        assert (status, problem["code"]) == (404, "no_proof")


async def test_an_answer_that_does_not_verify_is_withheld() -> None:
    engine = ScriptedEngine()
    engine.fault = WrongAnswerError()
    async with stage(engine) as s:
        status, problem = await s.post("/v1/proofs", PROOF)
        assert (status, problem["code"]) == (500, "wrong_answer")
        assert "proof" not in problem


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/v1/proofs", 405, "method_not_allowed"),
        ("POST", "/v2/proofs", 404, "not_found"),
    ],
)
async def test_other_paths_and_methods_are_refused_as_problems(
    method: str, path: str, status: int, code: str
) -> None:
    async with stage(ScriptedEngine()) as s, s.http.request(method, s.url + path) as answer:
        assert answer.content_type == "application/problem+json"
        assert (answer.status, (await answer.json())["code"]) == (status, code)


async def test_a_request_id_goes_both_ways_and_a_bad_one_is_replaced() -> None:
    async with stage(ScriptedEngine()) as s:
        for given, kept in (("mine-1", True), ("no good", False), ("x" * 101, False)):
            headers = {"X-Request-Id": given}
            async with s.http.post(s.url + "/v1/proofs", data="{", headers=headers) as answer:
                got = answer.headers["X-Request-Id"]
                assert (got == given) is kept
                assert (await answer.json(content_type=None))["request_id"] == got


@pytest.mark.parametrize("value", ["0", "-5", "soon", "1e3", "", "600001", "9" * 5000])
async def test_a_deadline_must_be_a_sane_number(value: str) -> None:
    async with stage(ScriptedEngine()) as s:
        status, problem = await s.post("/v1/proofs", PROOF, X_Deadline_Ms=value)
        assert status == 400
        assert "X-Deadline-Ms" in str(problem["detail"])


async def test_work_that_misses_its_deadline_is_stopped() -> None:
    engine = ScriptedEngine()
    engine.gate.clear()
    async with stage(engine) as s:
        status, problem = await s.post("/v1/proofs", PROOF, X_Deadline_Ms="50")
        assert (status, problem["code"]) == (504, "deadline")
        await eventually(lambda: engine.stopped == 1)


async def test_work_whose_deadline_passed_while_it_waited_is_never_started() -> None:
    engine = ScriptedEngine()
    engine.gate.clear()
    async with stage(engine) as s:
        first = s.start("/v1/proofs", PROOF)
        await eventually(lambda: engine.asked)
        assert (await s.post("/v1/proofs", PROOF, X_Deadline_Ms="50"))[0] == 504
        engine.gate.set()
        assert (await first)[0] == 200
        assert (await s.post("/v1/proofs", PROOF))[0] == 200
    assert len(engine.asked) == 2


async def test_what_cannot_be_done_in_time_is_refused_without_being_started() -> None:
    engine = ScriptedEngine()
    async with stage(engine) as s:
        s.learn(2.0, json.loads(PROOF)["level"])
        status, problem = await s.post("/v1/proofs", PROOF, X_Deadline_Ms="100")
        assert (status, problem["code"]) == (504, "deadline")
        assert "cannot be done" in str(problem["detail"])
        assert engine.asked == []
        assert (await s.post("/v1/proofs", PROOF))[0] == 200


async def test_a_request_waits_for_a_lost_worker_only_where_one_can_be_back_in_time() -> None:
    async with stage(ScriptedEngine()) as s:
        s.crew.lose()
        status, problem = await s.post("/v1/proofs", PROOF, X_Deadline_Ms="100")
        assert (status, problem["code"]) == (503, "worker_lost")
        waiting = s.start("/v1/proofs", PROOF)
        await eventually(lambda: s.server._queue.waiting)
        s.crew.begin(ScriptedEngine())
        s.server._queue._hand_out()
        assert (await waiting)[0] == 200


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back() -> None:
    engine = ScriptedEngine()
    engine.gate.clear()
    async with stage(engine, recompute_queue_room=1) as s:
        calls = [s.start("/v1/proofs", PROOF)]
        await eventually(lambda: engine.asked)
        calls.append(s.start("/v1/proofs", PROOF))
        await eventually(lambda: s.server._queue.waiting)
        async with s.http.post(s.url + "/v1/proofs", data=PROOF) as answer:
            assert answer.status == 429
            assert 1 <= int(answer.headers["Retry-After"]) <= 60
            assert (await answer.json(content_type=None))["code"] == "busy"
        engine.gate.set()
        assert [(await call)[0] for call in calls] == [200, 200]


async def test_without_room_to_wait_a_free_worker_still_works() -> None:
    async with stage(ScriptedEngine(), recompute_queue_room=0) as s:
        assert (await s.post("/v1/proofs", PROOF))[0] == 200


async def test_the_work_of_a_client_that_left_is_stopped_or_never_started() -> None:
    engine = ScriptedEngine()
    engine.gate.clear()
    async with stage(engine) as s:
        running = s.start("/v1/proofs", PROOF)
        await eventually(lambda: engine.asked)
        queued = s.start("/v1/proofs", PROOF)
        await eventually(lambda: s.server._queue.waiting)
        queued.cancel()
        await eventually(lambda: s.server._queue.waiting == 0)
        running.cancel()
        await eventually(lambda: engine.stopped == 1)
        engine.gate.set()
        assert (await s.post("/v1/proofs", PROOF))[0] == 200
    assert len(engine.asked) == 2


async def test_a_request_that_never_ends_is_given_up() -> None:
    async with stage(ScriptedEngine(), recompute_deadline_ms=50) as s:
        reader, writer = await asyncio.open_connection("127.0.0.1", s.port)
        writer.write(b"POST /v1/proofs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert b" 504 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "frame",
    [struct.pack("<I", 12) + b"opaque bytes", struct.pack("<I", 65536) + bytes(100), bytes(8)],
)
async def test_a_foreign_frame_is_refused_at_once(frame: bytes) -> None:
    async with stage(ScriptedEngine()) as s:
        reader, writer = await asyncio.open_connection("127.0.0.1", s.port)
        writer.write(frame)
        refusal = await asyncio.wait_for(reader.read(), 10)
        assert refusal == b"" or refusal.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
        writer.close()
        await writer.wait_closed()
        assert (await s.post("/v1/proofs", PROOF))[0] == 200


async def test_a_server_that_starts_takes_no_requests_and_says_so() -> None:
    async with stage(None) as s:
        status, problem = await s.post("/v1/proofs", PROOF)
        assert (status, problem["code"]) == (503, "not_ready")
        assert await status_of(s, "/readyz") == 503
        assert await status_of(s, "/healthz") == 200
        s.crew.begin(ScriptedEngine())
        assert await status_of(s, "/readyz") == 200


async def test_a_server_that_drains_takes_no_requests_but_ends_those_it_has() -> None:
    engine = ScriptedEngine()
    engine.gate.clear()
    async with stage(engine) as s:
        under_way = s.start("/v1/proofs", PROOF)
        await eventually(lambda: engine.asked)
        s.server.end()
        status, problem = await s.post("/v1/proofs", PROOF)
        assert (status, problem["code"]) == (503, "draining")
        assert await status_of(s, "/readyz") == 503
        engine.gate.set()
        assert (await under_way)[0] == 200


async def status_of(s: Stage, path: str) -> int:
    async with s.http.get(s.url + path) as answer:
        return answer.status


async def test_the_server_tells_what_it_is_and_learns_how_fast() -> None:
    async with stage(ScriptedEngine(), recompute_threads=2, recompute_queue_room=7) as s:
        await s.post("/v1/proofs", PROOF)
        async with s.http.get(s.url + "/v1/server") as answer:
            view = RecomputeServerView.model_validate(await answer.json())
        async with s.http.get(s.url + "/healthz") as answer:
            health = await answer.json()
    assert (view.instance_id, view.state, view.k, view.levels) == (
        "inst-test",
        "ready",
        list(range(18, 41)),
        [1, 2, 3, 4, 5, 6, 7],
    )
    assert (view.devices[0].kind, view.devices[0].workers, view.queue.room) == ("cpu", 2, 7)
    rates = {rate.level: rate for rate in view.rates}
    assert rates[3].proof_ms is not None
    assert rates[3].quality_ms is rates[1].proof_ms is None
    assert (health["role"], health["instance_id"]) == ("recompute", "inst-test")


async def test_what_was_answered_lately_needs_no_computing_unless_the_client_wants_it() -> None:
    engine, other = ScriptedEngine(), changed(plot_id="ab" * 32)
    async with stage(engine) as s:
        headers = {"Cache-Control": "max-age=0"}
        for _ in range(3):
            async with s.http.post(s.url + "/v1/proofs", data=other, headers=headers) as answer:
                assert ProofReply.model_validate(await answer.json()).numbers() == known_proof().xs
        assert len(engine.asked) == 1
        assert (await s.post("/v1/proofs", other))[0] == 200
        assert len(engine.asked) == 2
        async with s.http.get(s.url + "/v1/server") as answer:
            view = RecomputeServerView.model_validate(await answer.json())
        async with s.http.get(s.url + "/metrics") as answer:
            text = await answer.text()
    assert view.answers is not None
    assert (view.answers.kept, view.answers.hits, view.answers.joined) == (1, 2, 0)
    assert [rate.level for rate in view.devices[0].rates] == [3]
    assert "gpupool_recompute_known_answers_total 2.0" in text


async def test_the_shipped_proof_which_tools_measure_with_is_always_computed() -> None:
    engine = ScriptedEngine()
    async with stage(engine) as s:
        for _ in range(2):
            async with s.http.post(s.url + "/v1/proofs", data=PROOF, headers={"Cache-Control": ""}) as answer:
                assert answer.status == 200
    assert len(engine.asked) == 2


async def test_outcomes_are_counted() -> None:
    async with stage(ScriptedEngine()) as s:
        await s.post("/v1/proofs", PROOF)
        await s.post("/v1/proofs", "{")
        await s.post("/v1/qualities", QUALITY)
        async with s.http.get(s.url + "/metrics") as answer:
            text = await answer.text()
    assert 'gpupool_recompute_requests_total{kind="proof",outcome="ok"} 1.0' in text
    assert 'gpupool_recompute_requests_total{kind="proof",outcome="invalid_input"} 1.0' in text
    labels = 'engine="numba",kind="quality",level="3"'
    assert f"gpupool_recompute_compute_seconds_count{{{labels}}} 1.0" in text
    assert 'gpupool_recompute_device_ready{device="0",engine="numba",name="a test"} 1.0' in text
    assert "gpupool_recompute_worker_losses_total 0.0" in text
    assert "gpupool_recompute_ready 1.0" in text


async def test_one_connection_serves_many_requests() -> None:
    connector = aiohttp.TCPConnector(limit=1)
    async with stage(ScriptedEngine()) as s, aiohttp.ClientSession(connector=connector) as http:
        for _ in range(5):
            async with http.post(s.url + "/v1/proofs", data=PROOF) as answer:
                assert answer.status == 200
                assert answer.headers.get("Connection", "keep-alive") == "keep-alive"
                await answer.read()
