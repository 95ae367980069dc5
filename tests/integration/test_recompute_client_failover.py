"""The client against real hosts that are killed, frozen, slow, lying, busy or away: no look-up is lost."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import pytest

import mainnet
from gpupool.core.errors import DeadlineError, InvalidInputError, UnsupportedError
from gpupool.pos.errors import NoProofError
from gpupool.pos.quality import proof_pair
from gpupool.recompute.client import Answer, AsyncClient, Client, ClientOptions, Host
from gpupool.recompute.client.table import HostView
from gpupool.recompute.demo import demo_request, proof_request, quality_request
from recompute_hosts import HostProcess, hosts

LEVEL = 3
TIMEOUT_S = 20.0
"""Long, so that a busy test machine loses nothing; what is fast or slow is never measured here."""


@asynccontextmanager
async def client(*known: HostProcess | str, **options: Any) -> AsyncIterator[AsyncClient]:
    names = [host if isinstance(host, str) else host.name for host in known]
    given = {"timeout_s": TIMEOUT_S, **options}
    async with AsyncClient(ClientOptions(hosts=tuple(map(Host.parse, names)), **given)) as opened:
        yield opened


def state(opened: AsyncClient, host: HostProcess) -> HostView:
    return next(view for view in opened.hosts() if view.name == host.name)


async def look_up(opened: AsyncClient, number: int) -> Answer:
    """A quality of one of the known proofs; the answer is compared with what is known."""
    proof = mainnet.K32[number % len(mainnet.K32)]
    answer = await opened.look_up_quality(quality_request(proof, LEVEL))
    assert answer.numbers == proof_pair(proof.xs, proof.challenge)
    return answer


async def under_load(opened: AsyncClient, disturb: Callable[[], None], count: int = 150) -> list[Answer]:
    """Run ``count`` look-ups, eight at a time, and disturb after a third of them; every one must succeed."""
    numbers, answers = iter(range(count)), []

    async def worker() -> None:
        for number in numbers:
            answers.append(await look_up(opened, number))
            if len(answers) == count // 3:
                disturb()

    await asyncio.gather(*(worker() for _ in range(8)))
    assert len(answers) == count
    return answers


async def test_proofs_and_qualities_come_back_verified() -> None:
    with hosts("") as (only,):
        async with client(only) as opened:
            for number, proof in enumerate(mainnet.K32):
                await look_up(opened, number)
                answer = await opened.recover_proof(proof_request(proof, LEVEL))
                assert (answer.numbers, answer.host, answer.troubles) == (proof.xs, only.name, ())


async def test_two_good_hosts_share_the_load_by_their_speed() -> None:
    with hosts("--delay 0.01", "--delay 0.05") as (fast, slow):
        async with client(fast, slow) as opened:
            answers = await under_load(opened, lambda: None)
    by_host = [sum(answer.host == host.name for answer in answers) for host in (fast, slow)]
    assert by_host[0] > by_host[1] > 0


async def test_a_killed_host_costs_no_look_up_and_is_left_alone() -> None:
    with hosts("--delay 0.01", "--delay 0.01") as (doomed, good):
        async with client(doomed, good) as opened:
            await under_load(opened, doomed.kill)
            assert state(opened, doomed).state == "resting"
            assert state(opened, doomed).reason == "refused the connection"
            failures = state(opened, doomed).failures
            for number in range(20):
                assert (await look_up(opened, number)).host == good.name
            assert state(opened, doomed).failures == failures
        doomed.start()


async def test_a_frozen_host_costs_no_look_up() -> None:
    with hosts("--delay 0.01", "--delay 0.01") as (frozen, good):
        async with client(frozen, good) as opened:
            await under_load(opened, frozen.freeze)
            assert state(opened, frozen).state == "resting"
            assert "stayed silent" in str(state(opened, frozen).reason)
        frozen.thaw()


async def test_a_slow_host_is_overtaken() -> None:
    with hosts("--delay 600", "") as (slow, good):
        async with client(slow, good, timeout_s=6.0) as opened:
            answers = [await look_up(opened, number) for number in range(5)]
    assert {answer.host for answer in answers} == {good.name}


async def test_a_lying_host_is_quarantined_told_of_and_its_answers_are_never_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with hosts("--lies", "") as (liar, good):
        async with client(liar, good) as opened:
            answers = await under_load(opened, lambda: None, count=30)
            assert {answer.host for answer in answers} == {good.name}
            assert state(opened, liar).state == "quarantined"
            told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
            assert len(told) == 1
            assert f"{liar.name} is in quarantine, because it answered wrong" in told[0]
            proof = await opened.recover_proof(demo_request())
            assert proof.host == good.name


async def test_a_host_that_denies_a_proof_is_not_believed_alone() -> None:
    with hosts("--refuses no_proof", "") as (denier, good):
        async with client(denier, good) as opened:
            for number in range(4):
                assert (await look_up(opened, number)).host == good.name
            assert state(opened, denier).state == "quarantined"


async def test_what_all_hosts_deny_is_no_proof() -> None:
    with hosts("--refuses no_proof", "--refuses no_proof") as both:
        async with client(*both) as opened:
            with pytest.raises(NoProofError):
                await look_up(opened, 0)
            assert {view.state for view in opened.hosts()} == {"good"}


@pytest.mark.parametrize("refusal", ["busy", "draining", "unsupported", "locked"])
async def test_a_host_that_refuses_is_passed_over(refusal: str) -> None:
    with hosts(f"--refuses {refusal}", "") as (refusing, good):
        async with client(refusing, good) as opened:
            for number in range(4):
                assert (await look_up(opened, number)).host == good.name


async def test_a_question_that_no_host_takes_is_refused_at_once() -> None:
    with hosts("--refuses unsupported", "--refuses unsupported") as both:
        async with client(*both, timeout_s=3600.0) as opened:
            with pytest.raises(UnsupportedError):
                await look_up(opened, 0)


async def test_a_malformed_question_is_not_asked_twice() -> None:
    with hosts("--refuses malformed", "") as (first, second):
        async with client(first, second) as opened:
            refused = await asyncio.gather(*(look_up(opened, n) for n in range(2)), return_exceptions=True)
            assert [type(outcome) for outcome in refused].count(InvalidInputError) == 1


async def test_a_host_that_restarts_costs_nothing_although_it_is_the_only_one() -> None:
    with hosts("--delay 0.01") as (only,):
        async with client(only, timeout_s=60.0) as opened:
            await look_up(opened, 0)
            only.kill()
            waiting = asyncio.create_task(look_up(opened, 1))
            await asyncio.to_thread(only.start)
            assert (await waiting).host == only.name
            assert state(opened, only).state == "good"


async def test_a_restarted_host_is_not_blamed_for_the_connections_it_closed() -> None:
    with hosts("") as (only,):
        async with client(only) as opened:
            await look_up(opened, 0)
            only.kill()
            only.start()
            assert (await look_up(opened, 1)).troubles == ()


async def test_a_failed_host_is_asked_again_after_the_retry_interval() -> None:
    with hosts("", "--delay 0.05") as (returning, other):
        async with client(returning, other, retry_interval_s=0.3) as opened:
            returning.kill()
            await look_up(opened, 0)
            returning.start()

            async def asked_again() -> None:
                number = 0
                while (await look_up(opened, number)).host != returning.name:
                    number += 1

            await asyncio.wait_for(asked_again(), TIMEOUT_S)


async def test_one_good_host_is_enough_whatever_the_others_do() -> None:
    behaviours = ("--delay 0.01", "--delay 0.01", "--delay 0.01", "--lies", "--refuses busy")
    with hosts(*behaviours) as (good, dying, freezing, liar, busy):
        disturbances = itertools.cycle([dying.kill, freezing.freeze, dying.launch, freezing.thaw])
        async with client(good, dying, freezing, liar, busy, retry_interval_s=0.2) as opened:
            for _ in range(8):
                await under_load(opened, next(disturbances), count=40)
            assert state(opened, good).state == "good"
            assert all(view.outstanding == 0 for view in opened.hosts())


async def test_a_host_that_takes_no_connection_costs_no_look_up() -> None:
    with black_hole() as address, hosts("") as (good,):
        async with client(address, good, connect_timeout_s=0.3) as opened:
            for number in range(4):
                assert (await look_up(opened, number)).host == good.name
        async with client(address, connect_timeout_s=0.3, timeout_s=1.0) as opened:
            with pytest.raises(DeadlineError, match=r"did not take a connection within 0\.3 s"):
                await look_up(opened, 0)


@contextmanager
def black_hole() -> Iterator[str]:
    """An address whose queue of connections is full, so that the system drops whatever else comes."""
    with socket.socket() as listener, ExitStack() as fillers:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(8):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield f"127.0.0.1:{address[1]}"


def silent_address() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


@pytest.mark.parametrize("kind", ["closed", "silent", "unresolvable", "stranger"])
async def test_without_a_good_host_there_is_a_clear_error_at_the_deadline(kind: str) -> None:
    with silent_address() as listener:
        port = listener.getsockname()[1]
        host = "no-such-host.invalid" if kind == "unresolvable" else f"127.0.0.1:{port}"
        if kind == "closed":
            listener.close()
        async with client(host, timeout_s=1.0) as opened:
            loop = asyncio.get_running_loop()
            stranger = asyncio.create_task(babble(listener)) if kind == "stranger" else None
            began = loop.time()
            with pytest.raises(DeadlineError) as caught:
                await look_up(opened, 0)
            assert loop.time() - began >= 1.0
            if stranger is not None:
                stranger.cancel()
    words = {
        "closed": "refused the connection",
        "silent": "stayed silent",
        "unresolvable": "cannot be resolved",
        "stranger": "not HTTP",
    }
    assert words[kind] in caught.value.message
    assert "within 1 s" in caught.value.message
    assert "doctor" in caught.value.remedy


async def babble(listener: socket.socket) -> None:
    """Answer whoever connects with what is not HTTP."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"\x10\x00\x00\x00garbage\r\n\r\n" * 4)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, sock=listener) as server:
        await server.serve_forever()


async def test_the_deadline_ends_a_look_up_while_a_host_is_silent() -> None:
    """Not long after it either: the waiting is ended by the client's own clock, which counts in the error."""
    with hosts("--delay 600") as (slow,):
        async with client(slow, timeout_s=0.4) as opened:
            with pytest.raises(DeadlineError, match=r"stayed silent for \d+\.\d s"):
                await look_up(opened, 0)


async def test_a_token_is_sent_to_the_hosts() -> None:
    with hosts("--token sesame") as (only,):
        options = ClientOptions(hosts=(Host.parse(only.name),), timeout_s=TIMEOUT_S)
        async with AsyncClient(options, token="sesame") as opened:
            assert (await look_up(opened, 0)).host == only.name


def test_the_blocking_client_does_the_same() -> None:
    with hosts("", "") as (doomed, good):
        options = ClientOptions(hosts=(Host.parse(doomed.name), Host.parse(good.name)), timeout_s=TIMEOUT_S)
        with Client(options) as opened:
            for number, proof in enumerate(mainnet.K32[:4]):
                if number == 2:
                    doomed.kill()
                pair = opened.look_up_quality(quality_request(proof, LEVEL)).numbers
                assert pair == proof_pair(proof.xs, proof.challenge)
                assert opened.recover_proof(proof_request(proof, LEVEL)).numbers == proof.xs
            assert {view.name for view in opened.hosts()} == {doomed.name, good.name}
            with pytest.raises(DeadlineError):
                time_out(opened, doomed, good)
        doomed.start()


def time_out(opened: Client, *left: HostProcess) -> None:
    for host in left:
        if host.child.poll() is None:
            host.freeze()
    try:
        opened.recover_proof(demo_request(), timeout_s=0.3)
    finally:
        for host in left:
            if host.child.poll() is None:
                host.thaw()


async def test_the_local_engine_answers_when_no_host_is_good(free_port: int) -> None:
    async with client(f"127.0.0.1:{free_port}", local_fallback=True, timeout_s=100.0) as opened:
        proof = mainnet.K32[0]
        answer = await opened.look_up_quality(quality_request(proof, 1))
        assert (answer.host, answer.numbers) == ("local", proof_pair(proof.xs, proof.challenge))
        assert (await opened.recover_proof(proof_request(proof, 1))).host == "local"
