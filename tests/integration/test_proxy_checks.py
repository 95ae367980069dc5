"""A server that answers wrong costs the client nothing: answers are checked, asked for elsewhere, and the server locked."""

import asyncio
import json

import pytest

from gpupool.balancing import NodeState
from gpupool.recompute.demo import demo_request, known_proof
from gpupool.recompute.proxy.judging import RIGHT, UNKNOWN, WRONG
from gpupool.recompute.proxy.verdicts import SHARE, TRUST_AFTER, Judge
from polling import eventually
from proxy_stage import HttpNode, ProxyStage, nodes, proxy

PROOFS = b"/v1/proofs"
QUESTION = demo_request().model_dump_json(exclude_none=True).encode()
RIGHT_XS = known_proof().xs
WRONG_XS = (RIGHT_XS[0] ^ 1, *RIGHT_XS[1:])
"""Of the same line points: only the tables tell."""
NO_PROOF = {"code": "no_proof", "detail": "No proof fits these line points."}


def answer(xs: tuple[int, ...]) -> dict[str, object]:
    return {"proof": [f"{x:x}" for x in xs], "checked": "challenge"}


def node(xs: tuple[int, ...] = RIGHT_XS) -> HttpNode:
    made = HttpNode()
    made.body = answer(xs)
    return made


async def ask(stage: ProxyStage, times: int) -> list[tuple[int, object]]:
    answers = await asyncio.gather(*(stage.http("POST", "/v1/proofs", QUESTION) for _ in range(times)))
    return [(status, json.loads(body)) for status, _, body in answers]


async def test_wrong_answers_are_asked_elsewhere_and_their_server_is_locked_with_the_reason() -> None:
    liar, honest = node(WRONG_XS), node()
    async with nodes(liar, honest), proxy(liar, honest, check_answers=True) as stage:
        await stage.known(2)

        async def locked() -> bool:
            assert await ask(stage, 4) == [(200, answer(RIGHT_XS))] * 4
            views = stage.core.http.pool.view(stage.core.clock())
            return any(v.state is NodeState.QUARANTINED and "do not match" in v.reason for v in views)

        await eventually(locked, 40, "the liar being locked")
        before = len(liar.seen)
        await ask(stage, 8)
        assert len(liar.seen) == before
        assert "answered wrong" in str(stage.core.directory.nodes[liar.address].trouble)
        assert stage.core.directory.nodes[honest.address].right_in_row > 8
        assert stage.core.http.pool.view(stage.core.clock())[1].state is not NodeState.QUARANTINED


async def test_no_proof_counts_once_two_servers_say_so() -> None:
    blind, honest = node(), node()
    blind.status, blind.body = 404, NO_PROOF
    async with nodes(blind, honest), proxy(blind, honest, check_answers=True) as stage:
        await stage.known(2)
        assert await ask(stage, 8) == [(200, answer(RIGHT_XS))] * 8
        assert "no proof" in str(stage.core.directory.nodes[blind.address].trouble)
        honest.status, honest.body = 404, NO_PROOF
        assert await ask(stage, 2) == [(404, NO_PROOF)] * 2


@pytest.mark.parametrize("status", [400, 404, 405, 413, 422])
async def test_a_server_that_refuses_everything_costs_nobody_an_answer(status: int) -> None:
    """It says no faster than any other one answers, and would get nearly all questions."""
    stranger, honest = node(), node()
    stranger.status, stranger.body = status, {"code": "not_this"}
    honest.delay = 0.02
    async with nodes(stranger, honest), proxy(stranger, honest, check_answers=True) as stage:
        await stage.known(2)

        async def seen_often() -> bool:
            assert await ask(stage, 4) == [(200, answer(RIGHT_XS))] * 4
            return len(honest.seen) > 40

        await eventually(seen_often, 40, "many answers")
        if status != 422:
            assert f"refused ({status})" in str(stage.core.directory.nodes[stranger.address].trouble)
            views = stage.core.http.pool.view(stage.core.clock())
            assert views[0].state is NodeState.QUARANTINED


async def test_no_proof_is_told_at_once_where_nobody_else_can_be_asked() -> None:
    blind, dead = node(), node()
    blind.status, blind.body = 404, NO_PROOF
    async with nodes(blind, dead), proxy(blind, dead) as stage:
        await stage.known(2)
        await dead.stop()

        async def told() -> bool:
            status, _, body = await stage.http("POST", "/v1/proofs", QUESTION, X_Deadline_Ms="60000")
            return (status, json.loads(body)) == (404, NO_PROOF)

        await eventually(told, 30, "the answer, long before its deadline")


async def test_no_proof_is_told_before_the_deadline_where_the_other_server_says_nothing() -> None:
    blind, silent = node(), node()
    blind.status, blind.body = 404, NO_PROOF
    async with nodes(blind, silent), proxy(blind, silent) as stage:
        await stage.known(2)
        silent.mode = "hang"
        status, _, body = await stage.http("POST", "/v1/proofs", QUESTION, X_Deadline_Ms="2000")
        assert (status, json.loads(body)) == (404, NO_PROOF)


async def test_where_all_answer_wrong_the_client_is_told_and_nobody_is_locked() -> None:
    """A question that every server seems to answer wrong may itself be at fault; it must not empty the pool."""
    first, second = node(WRONG_XS), node(WRONG_XS)
    async with nodes(first, second), proxy(first, second, check_answers=True) as stage:
        await stage.known(2)
        for status, body in await ask(stage, 8):
            assert (status, body["code"]) == (502, "wrong_answer")  # type: ignore[index]
        assert {v.state for v in stage.core.http.pool.view(stage.core.clock())} == {NodeState.LIVE}


async def test_a_checker_that_dies_costs_no_answer() -> None:
    honest = node()
    async with nodes(honest), proxy(honest, check_answers=True) as stage:
        await stage.known(1)
        await ask(stage, 1)
        judge = stage.core.judge
        assert judge.verdicts["right"] == 1
        judge.kill()
        assert await ask(stage, 4) == [(200, answer(RIGHT_XS))] * 4
        await eventually(lambda: not judge.running, 20, "the end of the checker being noticed")

        async def checked_again() -> bool:
            await ask(stage, 1)
            return judge.verdicts["right"] > 5

        await eventually(checked_again, 30, "a new checker")


async def test_a_proxy_that_is_told_not_to_checks_nothing() -> None:
    liar = node(WRONG_XS)
    async with nodes(liar), proxy(liar, check_answers=False) as stage:
        await stage.known(1)
        assert await ask(stage, 1) == [(200, answer(WRONG_XS))]
        assert not stage.core.judge.running


def test_trusted_nodes_are_sampled_and_the_others_never() -> None:
    now = 0.0
    judge = Judge(lambda: now)
    taken = sum(judge.wants(PROOFS, trusted=True) for _ in range(10_000))
    assert 200 <= taken <= 300
    assert all(judge.wants(PROOFS, trusted=False) for _ in range(100))
    now = 10.0
    again = sum(judge.wants(PROOFS, trusted=True) for _ in range(10_000))
    assert again <= 0.5 / 0.002 + 1
    assert SHARE <= 0.1
    assert TRUST_AFTER > 1


async def test_verdicts_come_back_in_order() -> None:
    loop = asyncio.get_running_loop()
    judge = Judge(loop.time)
    told: list[tuple[int, int]] = []
    asked = [(QUESTION, RIGHT_XS, RIGHT), (QUESTION, WRONG_XS, WRONG), (b"{}", RIGHT_XS, UNKNOWN)] * 20
    try:
        for number, (question, xs, _) in enumerate(asked):
            body = json.dumps(answer(xs)).encode()
            judge.ask(PROOFS, question, body, lambda worth, why, number=number: told.append((number, worth)))  # type: ignore[misc]
        await eventually(lambda: len(told) == len(asked), 30, "the verdicts")
    finally:
        await judge.close()
    assert told == [(number, expected) for number, (_, _, expected) in enumerate(asked)]
