"""The server under its old name, as a process: its lines, its flags, its stop, its end when a worker hangs."""

import asyncio
import json
import os
import re
import signal
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path

import aiohttp
import pytest

from gpupool.cli.original_programs import GUARD, original_program
from gpupool.recompute import credentials
from gpupool.recompute.demo import demo_request
from gpupool.recompute.server import doorway, main
from gpupool.recompute.server.capacity import usable_cores
from gpupool.recompute.server.settings import RecomputeServerSettings
from polling import eventually
from worker_engines import HANG

NAME = "chia_recompute_server"
LAUNCHER = "from gpupool.cli.recompute_server_dropin import main; main()"
WITH_OBEDIENT_ENGINE = """
import asyncio, sys
from pathlib import Path
from gpupool.core.listening import bind
from gpupool.core.logging import set_up_logging
from gpupool.recompute.server.main import serve
from gpupool.recompute.server.settings import RecomputeServerSettings
from gpupool.recompute.server.staffing import WorkerPlan
plans = [WorkerPlan(name="a test", engine="test", factory="worker_engines:obedient", threads=1)]
settings = RecomputeServerSettings(home=Path(sys.argv[1]), recompute_port=0, recompute_drain_seconds=0.2)
set_up_logging("recompute")
asyncio.run(serve(settings, bind("a test", "127.0.0.1", 0, "X"), plans))
"""
LISTENING = re.compile(rb"ReComputeServer listening on \S+ port (\d+)\n")


def environment(checkout: Path, home: Path | None, **more: str) -> dict[str, str]:
    given = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": str(checkout / "src"),
        "NUMBA_CACHE_DIR": os.environ["NUMBA_CACHE_DIR"],
    }
    return given | ({"GPUPOOL_HOME": str(home)} if home else {}) | more


class Running:
    """A server that listens."""

    def __init__(self, child: asyncio.subprocess.Process, lines: list[str], port: int) -> None:
        self.child, self.lines, self.port = child, lines, port

    async def stop(self) -> tuple[int, str]:
        """Tell it to stop; return its status and what it logged."""
        self.child.send_signal(signal.SIGTERM)
        return await self.end()

    async def end(self) -> tuple[int, str]:
        _, logged = await self.child.communicate()
        return self.child.returncode or 0, logged.decode()


@asynccontextmanager
async def running(program: str, *arguments: str, env: dict[str, str]) -> AsyncIterator[Running]:
    """Start a program that serves; give it once it says that it listens; see that it is gone afterwards."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *arguments),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    lines, port = [], 0
    try:
        while not port:
            line = await asyncio.wait_for(child.stdout.readline(), 60)
            if not line:
                _, complaint = await child.communicate()
                raise AssertionError(complaint.decode())
            lines.append(line.decode().rstrip("\n"))
            found = LISTENING.fullmatch(line)
            port = int(found[1]) if found else 0
        yield Running(child, lines, port)
    finally:
        if child.returncode is None:
            child.kill()
            await child.communicate()


async def test_it_starts_with_the_lines_operators_know_and_warns_that_it_is_open(
    checkout: Path, tmp_path: Path
) -> None:
    env = environment(checkout, tmp_path, CHIAPOS_MAX_CORES="60", CHIAPOS_MAX_CUDA_DEVICES="1")
    async with running(LAUNCHER, "-p", "0", env=env) as server:
        cores = usable_cores()
        first, cuda, third, *devices, notice, last = server.lines
        assert first == f"[chiapos] Using 60 / {cores} CPU threads"
        assert re.fullmatch(r"\[chiapos\] Using 0 / \d+ CUDA devices", cuda)
        assert third == f"Using 60 / {cores} CPU threads"
        assert re.fullmatch(r"Using .+ \(CPU \(numba\)\)", devices[-1])
        assert notice == "No CUDA card was found, and -G 1 asks for some"
        assert last == f"ReComputeServer listening on 0.0.0.0 port {server.port}"
        record = json.loads((tmp_path / "run" / "recompute.json").read_text())
        assert (record["port"], record["process"]["pid"]) == (server.port, server.child.pid)
        status, logged = await server.stop()
    assert status == 0
    assert "open_to_everyone" in logged
    assert "forced_end" not in logged
    assert list((tmp_path / "run").iterdir()) == []


CARDS = """
from gpupool.devices.recovery.choosing import Card
from gpupool.recompute.server import cards, main as server
def found(choices):
    names = ("NVIDIA GeForce RTX 3070", "NVIDIA P106-100")
    return cards.Found(tuple(Card("CUDA", n, name, 8 << 30, f"0000:0{n}:00.0", 9 - n) for n, name in enumerate(names)))
server.find_cards = found
server.processor_name = lambda: "AMD EPYC 7502"
from gpupool.recompute.server import settings
settings.usable_cores = lambda: 18
"""
BOTH, FIRST, SECOND = ("3070", "P106"), ("3070",), ("P106",)


@pytest.mark.parametrize(
    ("arguments", "used"),
    [
        (("-r", "16"), BOTH),
        (("-r", "16", "-G", "1", "-O", "0"), FIRST),
        (("-g", "0,1"), BOTH),
        (("-g", "0", "-g", "1", "-G", "0"), BOTH),
        (("-g", "1", "-O", "0"), SECOND),
        (("-G", "0"), ()),
    ],
)
async def test_the_lines_of_the_guide_to_the_letter(
    checkout: Path, tmp_path: Path, arguments: tuple[str, ...], used: tuple[str, ...]
) -> None:
    env = environment(checkout, tmp_path)
    names = {"3070": "NVIDIA GeForce RTX 3070", "P106": "NVIDIA P106-100"}
    async with running(CARDS + LAUNCHER, "-p", "0", "--host", "127.0.0.1", *arguments, env=env) as server:
        assert server.lines == [
            "[chiapos] Using 16 / 18 CPU threads",
            f"[chiapos] Using {len(used)} / 2 CUDA devices",
            "Using 16 / 18 CPU threads",
            *(f"Using {names[card]} (CUDA (native))" for card in used),
            "Using AMD EPYC 7502 (CPU (numba))",
            f"ReComputeServer listening on 127.0.0.1 port {server.port}",
        ]


async def test_a_card_that_is_not_there_is_refused_in_either_form_of_a_list(
    checkout: Path, tmp_path: Path
) -> None:
    for arguments in (("-g", "0,2"), ("-g", "0", "-g", "2")):
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CARDS + LAUNCHER, "-p", "0", *arguments),
            env=environment(checkout, tmp_path),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, complaint = await child.communicate()
        assert (child.returncode, printed) == (2, b"")
        assert b"no CUDA card 2" in complaint


async def test_flags_count_more_than_variables(checkout: Path, tmp_path: Path) -> None:
    env = environment(checkout, tmp_path, CHIAPOS_MAX_CORES="60", GPUPOOL_RECOMPUTE_THREADS="50")
    async with running(LAUNCHER, "-p", "0", "--host", "127.0.0.1", "-r", "-3", env=env) as server:
        cores = usable_cores()
        assert server.lines[0] == f"[chiapos] Using {cores} / {cores} CPU threads"
        _, logged = await server.stop()
        assert "open_to_everyone" not in logged
    async with running(LAUNCHER, "-p", "0", "--host", "::1", env=env) as server:
        assert server.lines[0] == f"[chiapos] Using 50 / {usable_cores()} CPU threads"
        assert server.lines[-1].startswith("ReComputeServer listening on ::1 port ")


async def test_without_a_chosen_state_folder_no_record_is_kept(checkout: Path, tmp_path: Path) -> None:
    env = environment(checkout, None, HOME=str(tmp_path))
    async with running(LAUNCHER, "-p", "0", "--host", "127.0.0.1", env=env) as server:
        status, logged = await server.stop()
    assert status == 0, logged
    assert not any("recompute.json" in files for _, _, files in os.walk(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "more", "word"),
    [
        (["-g", "99"], {}, "no CUDA card 99"),
        (["-g", "x"], {}, "index of a card"),
        (["-p", "99999"], {}, "recompute_port"),
        ([], {"CHIAPOS_MAX_CORES": "many"}, "CHIAPOS_MAX_CORES"),
        (["--tls-cert", "cert.pem"], {}, "both a certificate and its key"),
        (["--token-file", "nowhere"], {}, "token file nowhere"),
    ],
)
async def test_what_makes_no_sense_is_refused_before_it_listens(
    checkout: Path, tmp_path: Path, arguments: list[str], more: dict[str, str], word: str
) -> None:
    port = [] if "-p" in arguments else ["-p", "0"]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LAUNCHER, "--host", "127.0.0.1", *port, *arguments),
        env=environment(checkout, tmp_path, **more),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, complaint = await child.communicate()
    assert child.returncode in {2, 3}
    assert word in complaint.decode()
    assert "What to do:" in complaint.decode()
    assert b"listening" not in printed


async def test_a_worker_that_hangs_does_not_hold_up_a_stop(checkout: Path, tmp_path: Path) -> None:
    env = environment(checkout, None)
    env["PYTHONPATH"] += f"{os.pathsep}{checkout / 'tests'}"
    async with (
        running(WITH_OBEDIENT_ENGINE, str(tmp_path), env=env) as server,
        aiohttp.ClientSession() as http,
    ):
        url = f"http://127.0.0.1:{server.port}"

        async def ready() -> bool:
            async with http.get(f"{url}/readyz") as answer:
                return answer.status == 200

        async def is_running() -> bool:
            async with http.get(f"{url}/metrics") as answer:
                return b"gpupool_recompute_running 1.0" in await answer.read()

        await eventually(ready)
        body = demo_request().model_copy(update={"plot_id": HANG.hex()}).model_dump_json()
        asking = asyncio.create_task(http.post(f"{url}/v1/proofs", data=body))
        await eventually(is_running)
        status, logged = await server.stop()
        with pytest.raises(aiohttp.ClientError):
            (await asking).raise_for_status()
    assert status == 0
    assert "forced_end" not in logged


def program(folder: Path, text: str, name: str = NAME) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


ORIGINAL = '#!/bin/sh\necho "original with $*"\nexit 7\n'


PROXY_LAUNCHER = "from gpupool.cli.recompute_proxy_dropin import main; main()"


@pytest.mark.parametrize(
    ("launcher", "name", "instead"),
    [
        (LAUNCHER, NAME, "gpupool recompute serve"),
        (PROXY_LAUNCHER, "chia_recompute_proxy", "gpupool recompute proxy"),
    ],
)
async def test_it_yields_to_the_original_and_says_so(
    checkout: Path, tmp_path: Path, launcher: str, name: str, instead: str
) -> None:
    original = program(tmp_path / "bin", ORIGINAL, name)
    env = environment(checkout, tmp_path)
    env["PATH"] = f"{original.parent}{os.pathsep}{env['PATH']}"
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", launcher, "-p", "0", "-G", "1"),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, said = await child.communicate()
    assert (child.returncode, printed) == (7, b"original with -p 0 -G 1\n")
    assert str(original) in said.decode()
    assert instead in said.decode()


def test_only_a_program_that_is_not_ours_is_an_original(tmp_path: Path) -> None:
    ours = program(tmp_path / "venv", "#!/usr/bin/python\nfrom gpupool.cli import main\n")
    other = program(
        tmp_path / "other", "#!/opt/python\nfrom gpupool.cli.recompute_server_dropin import main\n"
    )
    link = tmp_path / "links"
    link.mkdir()
    (link / NAME).symlink_to(ours)
    text = program(tmp_path / "text", ORIGINAL)
    text.chmod(0o644)
    folders = [str(path.parent) for path in (ours, other, link / NAME, text)]
    assert original_program(NAME, os.pathsep.join(folders), ours) is None
    original = program(tmp_path / "bin", ORIGINAL)
    assert original_program(NAME, os.pathsep.join([*folders, str(original.parent)]), ours) == original


async def test_two_drop_ins_do_not_hand_over_for_ever(checkout: Path, tmp_path: Path) -> None:
    original = program(tmp_path / "bin", ORIGINAL)
    env = environment(checkout, tmp_path, **{GUARD: NAME})
    env["PATH"] = f"{original.parent}{os.pathsep}{env['PATH']}"
    async with running(LAUNCHER, "-p", "0", "--host", "127.0.0.1", env=env) as server:
        assert (await server.stop())[0] == 0


def test_the_package_installs_it_under_its_old_name(checkout: Path) -> None:
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"][NAME].partition(":")
    assert callable(getattr(import_module(module), function))


def test_the_page_of_limits_says_what_the_server_does(checkout: Path) -> None:
    page = (checkout / "docs" / "reference" / "limits.md").read_text()
    connections = RecomputeServerSettings.model_fields["recompute_connections"].default
    assert f"| open connections | {connections} (" in page
    assert f"said what they speak | {doorway.MOST_SILENT};" in page
    assert f"TLS handshake | {main._HEAD_SECONDS:g} s, then closed" in page
    assert f"{credentials._FILE_LIMIT} bytes; tokens of {credentials.MIN_TOKEN_LENGTH} characters" in page
