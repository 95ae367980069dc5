"""Whatever somebody sends, the front answers who may ask, tells its operator about the others, and stays well."""

import asyncio
import random
import ssl
import stat
import struct
from pathlib import Path

import aiohttp
import pytest

from certificates import Authority
from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.recompute.solver_front.allowing import AllowList
from gpupool.recompute.solver_front.farmers import MOST_OF_ONE, MOST_QUESTIONS
from gpupool.recompute.solver_front.identity import Identity
from gpupool.recompute.solver_front.wire import (
    MESSAGE_LIMIT,
    Kind,
    Message,
    Solve,
)
from polling import eventually
from solver_stage import (
    FarmerDouble,
    Stage,
    WorkerDouble,
    client_context,
    honest,
    made_identity,
    question,
    stage,
)


async def is_closed(farmer: FarmerDouble) -> bool:
    try:
        await farmer.receive()
    except ConnectionError:
        return True
    return False


async def still_well(standing: Stage, number: int) -> None:
    """Another farmer is answered as ever."""
    farmer = await standing.connected(made_identity(2))
    assert await farmer.solve(question(number))
    assert farmer.socket is not None
    await farmer.socket.close()


@pytest.mark.parametrize(
    "greeting",
    [
        {"network": "testnet11"},
        {"node_type": 1},
        {"node_type": 200},
        {"protocol": "newest"},
        {"protocol": "0.0.38\n"},
        {"network": "x" * 300},
        {"capabilities": tuple((number, "1") for number in range(100))},
    ],
)
async def test_who_greets_wrongly_is_shown_out(greeting: dict[str, object]) -> None:
    async with stage(WorkerDouble()) as standing:
        farmer = await standing.farmer().connect()
        with pytest.raises(ConnectionError, match="1002"):
            await farmer.greet(**greeting)
        await still_well(standing, 1)


async def test_broken_messages_end_only_their_own_connection() -> None:
    draw = random.Random(8666)
    whole = Message(Kind.SOLVE, None, Solve(bytes(128), bytes(32), 2, 28).encode()).encode()
    broken = [
        b"",
        whole[:-1],
        whole + b"\0",
        whole[:7],
        Message(Kind.SOLUTION, None, b"").encode(),
        Message(77, 3, bytes(100)).encode(),
        Message(Kind.HANDSHAKE, None, b"again").encode(),
        b"\x6d\0" + struct.pack(">I", 2**32 - 1),
        *(bytes(draw.randrange(256) for _ in range(draw.randrange(1, 200))) for _ in range(20)),
    ]
    async with stage(WorkerDouble()) as standing:
        for data in broken:
            for greets in (False, True):
                farmer = await standing.farmer().connect()
                if greets:
                    await farmer.greet()
                await farmer.send(data)
                assert await is_closed(farmer), data
        await eventually(lambda: not standing.front.farmers.connected)
        await still_well(standing, 1)


async def test_messages_that_are_too_long_or_text_end_the_connection() -> None:
    async with stage(WorkerDouble()) as standing:
        farmer = await standing.connected()
        await farmer.send(bytes(MESSAGE_LIMIT + 1))
        assert await is_closed(farmer)
        farmer = await standing.connected()
        assert farmer.socket is not None
        await farmer.socket.send_str("hello")
        assert await is_closed(farmer)
        await still_well(standing, 1)


async def test_an_error_that_a_farmer_tells_is_no_reason_to_part() -> None:
    async with stage(WorkerDouble()) as standing:
        farmer = await standing.connected()
        await farmer.send(Message(Kind.ERROR, None, b"\0\1\0\0\0\0\0"))
        assert await farmer.solve(question(1))


async def test_questions_out_of_range_are_told_to_the_operator_only() -> None:
    async with stage(WorkerDouble()) as standing:
        farmer = await standing.connected()
        for k, strength in ((28, 1), (28, 255), (27, 2), (0, 2), (255, 2)):
            await farmer.send(Message(Kind.SOLVE, None, Solve(bytes(128), bytes(32), strength, k).encode()))
        assert await farmer.solve(question(1))
        await eventually(
            lambda: 'requests_total{outcome="unsupported"} 5.0' in standing.front.counters.text().decode()
        )


async def test_one_connection_has_so_many_questions_and_one_node_so_many_connections() -> None:
    gate = asyncio.Event()

    async def wait(_: object) -> bytes:
        await gate.wait()
        return bytes(448)

    async with stage(WorkerDouble(wait)) as standing:
        farmer = await standing.connected()
        for number in range(MOST_QUESTIONS + 5):
            await farmer.ask(question(number))
        await eventually(
            lambda: 'reason="too_many_questions"} 5.0' in standing.front.counters.text().decode()
        )
        gate.set()
        for _ in range(MOST_QUESTIONS):
            await farmer.answer()
        for _ in range(MOST_OF_ONE - 1):
            await standing.connected()
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            await standing.connected()
        await still_well(standing, 1000)


async def test_only_certificates_of_chias_authority_come_in(tmp_path: Path) -> None:
    other = Authority(tmp_path).issue("a stranger")
    async with stage(WorkerDouble()) as standing:
        stranger = client_context(None)
        stranger.load_cert_chain(other.certificate, other.key)
        old = client_context(made_identity(1))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        for context in (client_context(None), stranger, old):
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await standing.farmer().connect(context)
        reader, writer = await asyncio.open_connection("127.0.0.1", standing.front.port)
        writer.write(b"GET /ws HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        async with standing.http.get(
            f"https://127.0.0.1:{standing.front.port}/", ssl=client_context(made_identity(1))
        ) as answer:
            assert answer.status == 404
        await still_well(standing, 1)


async def test_only_farmers_on_the_list_come_in_and_the_list_is_followed(tmp_path: Path) -> None:
    allowed = tmp_path / "farmers"
    allowed.write_text(f"# ours\n{made_identity(2).node_id} the farmer in the barn\n")
    async with stage(WorkerDouble(), allow_file=allowed, allow_local=False) as standing:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await standing.farmer(made_identity(1)).connect()
        assert 'reason="not_allowed"} 1.0' in standing.front.counters.text().decode()
        farmer = await standing.connected(made_identity(2))
        assert await farmer.solve(question(1))
        allowed.write_text(f"{made_identity(1).node_id}\n")
        assert await (await standing.connected(made_identity(1))).solve(question(2))
        await farmer.ask(question(3))
        assert await is_closed(farmer)


def test_lists_of_farmers_are_read_with_care(tmp_path: Path) -> None:
    good = "AB" * 32
    listed = AllowList([f"0x{good}"], None, local=False)
    assert good.lower() in listed
    assert listed.admits(good.lower(), "10.0.0.1")
    assert not listed.admits("cd" * 32, "127.0.0.1")
    assert AllowList([], None, local=True).admits("cd" * 32, "::1")
    assert not AllowList([], None, local=True).admits("cd" * 32, "10.0.0.1")
    for wrong in ("", "ab", "zz" * 32, good + "0"):
        with pytest.raises(InvalidInputError):
            AllowList([wrong], None, local=True)
    file = tmp_path / "farmers"
    with pytest.raises(InvalidInputError, match="cannot be read"):
        AllowList([], file, local=True)
    file.write_text(f"{good}\n")
    followed = AllowList([], file, local=False)
    file.write_text("this is no node id\n")
    assert followed.admits(good.lower(), "10.0.0.1")
    file.unlink()
    assert followed.admits(good.lower(), "10.0.0.1")


def test_the_identity_is_made_once_and_its_key_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    first = Identity.load_or_make(folder)
    assert Identity.load_or_make(folder) == first
    assert stat.S_IMODE(first.key.stat().st_mode) == 0o600
    first.key.chmod(0o644)
    with pytest.raises(EnvironmentProblemError, match="other users"):
        first.context()
    first.certificate.write_text("nothing")
    with pytest.raises(EnvironmentProblemError, match="cannot be used"):
        Identity.load_or_make(folder)


async def test_the_double_of_a_worker_is_honest() -> None:
    """What these tests take for the right answer has the length that the front demands."""
    async with stage(WorkerDouble(honest)) as standing:
        assert len(await (await standing.connected()).solve(question(5))) == 448
