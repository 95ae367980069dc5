"""What a hostile chute can reach: real processes behind every wall that this machine can build."""

import json
import os
import stat
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from gpupool.core.files import ensure_private_dir, write_private
from gpupool.core.processes import identify
from gpupool.fleet.ports.runtime import InstanceState, LaunchOrder
from gpupool.runtimes.process.confinement import FIRST_UID, LAST_UID, Confinement, Offer, Wall, look
from gpupool.runtimes.process.records import RunFolder
from gpupool.runtimes.process.runtime import ProcessRuntime
from gpupool.runtimes.process.table import real_users
from polling import eventually
from workloads import HEALTHY, order, program

HERE = look()
WALLS = {
    Wall.OWN_USER: [Wall.OWN_USER, Wall.ALLOW_LIST, Wall.FOLDERS],
    Wall.ALLOW_LIST: [Wall.ALLOW_LIST, Wall.FOLDERS],
    Wall.FOLDERS: [Wall.FOLDERS],
}[HERE.wall]
"""Every wall that this machine can build; the lower ones by leaving parts out."""
HIGH_WALLS = [wall for wall in WALLS if wall is not Wall.FOLDERS]

PROBE = """
import ctypes, json, os, sys, signal, shutil
def tried(action):
    try:
        value = action()
    except BaseException as error:
        return type(error).__name__
    return "DONE" if value is None else f"DONE {value!r}"[:200]
def read(path):
    with open(path, "rb") as file:
        return file.read(100)
def write(path):
    with open(path, "ab") as file:
        file.write(b"x")
{PRELUDE}
actions = {ACTIONS}
found = {name: tried(action) for name, action in actions.items()}
open("found.json.part", "w").write(json.dumps(found)); os.rename("found.json.part", "found.json")
"""


@dataclass
class Stage:
    """A state folder with secrets in it, and a runtime on it."""

    home: Path
    runtime: ProcessRuntime
    wall: Wall

    @property
    def runs(self) -> Path:
        return self.home / "agent" / "runs"

    async def healthy(self, wanted: LaunchOrder) -> None:
        """Launch, and wait until it is healthy."""
        # Another pool of this machine may take the port that was drawn; then the next launch draws another one.
        await self.runtime.launch(replace(wanted, max_restarts=3))

        async def look_at() -> bool:
            seen = {item.placement_id: item for item in await self.runtime.instances()}[wanted.placement_id]
            assert seen.state is not InstanceState.EXITED, seen.reason
            return seen.state is InstanceState.HEALTHY

        await eventually(look_at, what="healthy")

    async def probe(self, prelude: str = "", /, **actions: str) -> dict[str, str]:
        """Run a chute that tries ``actions`` (Python expressions) and return what came of each."""
        source = "{" + ", ".join(f"{name!r}: lambda: {code}" for name, code in actions.items()) + "}"
        body = (
            textwrap.dedent(PROBE).replace("{ACTIONS}", source).replace("{PRELUDE}", prelude)
            + "server.serve_forever()"
        )
        wanted = order(program(body))
        await self.healthy(wanted)
        _, work, _ = RunFolder.of(self.runs, wanted.placement_id).private
        found: dict[str, str] = json.loads((work / "found.json").read_text())
        return found


@asynccontextmanager
async def stage_on(home: Path, wall: Wall) -> AsyncIterator[Stage]:
    for name in ("keys/operator.token", "agent/node.key", "data/pool.db"):
        ensure_private_dir((home / name).parent)
        write_private(home / name, "planted-secret")
    offer = HERE if HERE.wall is wall else Offer(wall, "left out for this test", HERE.scoped)
    made = ProcessRuntime(
        home / "agent" / "runs", home / "cache", confinement=Confinement(offer=offer, protected=home)
    )
    await made.adopt()
    try:
        yield Stage(home, made, wall)
    finally:
        await made.close(stop_instances=True)


@pytest_asyncio.fixture(params=HIGH_WALLS)
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage behind each high wall."""
    async with stage_on(tmp_path / "home", request.param) as made:
        yield made


def refused(result: str) -> bool:
    return result in {"PermissionError", "OSError"}


async def test_the_pool_s_secrets_are_out_of_reach(stage: Stage) -> None:
    home = stage.home
    agent, secret = os.getpid(), (home / "keys" / "operator.token").open()
    found = await stage.probe(
        token=f"read({str(home / 'keys' / 'operator.token')!r})",
        token_by_dots="read(os.path.join(os.getcwd(), '../../../../keys/operator.token'))",
        key=f"read({str(home / 'agent' / 'node.key')!r})",
        database=f"read({str(home / 'data' / 'pool.db')!r})",
        token_written=f"write({str(home / 'keys' / 'operator.token')!r})",
        keys_listed=f"os.listdir({str(home / 'keys')!r})",
        home_listed=f"os.listdir({str(home)!r})",
        by_own_link=f"(os.symlink({str(home / 'keys' / 'operator.token')!r}, 'link'), read('link'))",
        by_hard_link=f"(os.link({str(home / 'keys' / 'operator.token')!r}, 'hard'), read('hard'))",
        by_agent_root=f"read('/proc/{agent}/root{home / 'keys' / 'operator.token'}')",
        agent_environment=f"read('/proc/{agent}/environ')",
        agent_memory=f"open('/proc/{agent}/mem', 'rb').seek(0)",
        agent_open_file=f"read('/proc/{agent}/fd/{secret.fileno()}')",
        agent_open_file_seen=f"os.readlink('/proc/{agent}/fd/{secret.fileno()}')",
        moved=f"os.rename({str(home / 'keys' / 'operator.token')!r}, 'taken')",
        removed=f"os.unlink({str(home / 'keys' / 'operator.token')!r})",
    )
    secret.close()
    assert {name: result for name, result in found.items() if not refused(result)} == {}
    assert (home / "keys" / "operator.token").read_text() == "planted-secret"


async def test_another_chute_s_files_and_own_record_are_out_of_reach(stage: Stage) -> None:
    other = order(HEALTHY)
    await stage.healthy(other)
    folder = RunFolder.of(stage.runs, other.placement_id)
    write_private(folder.private[1] / "customer.txt", "planted-secret")
    pid = next(item.pid for item in await stage.runtime.instances())
    found = await stage.probe(
        file=f"read({str(folder.private[1] / 'customer.txt')!r})",
        file_written=f"write({str(folder.private[1] / 'customer.txt')!r})",
        record=f"read({str(folder.record_path)!r})",
        output=f"read({str(folder.output)!r})",
        environment=f"read('/proc/{pid}/environ')",
        by_its_folder=f"read('/proc/{pid}/cwd/customer.txt')",
        own_record="read('../record.json')",
        own_record_replaced="os.symlink('/etc/passwd', '../record.json.new')",
        own_output_replaced="os.rename('../output.log', '../elsewhere')",
        own_folder_replaced="os.rename('../work', '../moved')",
        next_to_others="os.mkdir('../../pl-made')",
        shared_models=f"write({str(stage.home / 'cache' / 'models' / 'planted')!r})",
        shared_kernels=f"write({str(stage.home / 'cache' / 'numba' / 'planted')!r})",
        their_kernels=f"write({str(stage.home / 'cache' / f'numba-{FIRST_UID}' / 'planted')!r})",
    )
    allowed = {name: result for name, result in found.items() if not refused(result)}
    # Nothing was ever shared under that name, which is no leak.
    assert all(result == "FileNotFoundError" for result in allowed.values()), allowed
    assert set(allowed) <= {"shared_kernels", "their_kernels"}


async def test_a_chute_can_do_its_own_work(stage: Stage) -> None:
    found = await stage.probe(
        home="write(os.environ['HOME'] + '/x')",
        work="write('x')",
        temporary="__import__('tempfile').NamedTemporaryFile().write(b'x') and None",
        models="os.listdir(os.environ['GPUPOOL_MODEL_CACHE']).sort()",
        moved="(write('a'), os.rename('a', os.environ['HOME'] + '/a')) and None",
        child="__import__('subprocess').run(['/bin/sh', '-c', 'exit 0'], check=True) and None",
        again_output="write('/dev/stdout')",
        hosts="read('/etc/hosts') and None",
        random="read('/dev/urandom') and None",
        lock="__import__('multiprocessing').Lock() and None",
        library="__import__('gpupool.core.ids') and None",
        user="__import__('getpass').getuser()",
    )
    assert found.pop("user") == "DONE 'workload'"
    assert {name: result for name, result in found.items() if result != "DONE"} == {}


async def test_nothing_of_the_system_can_be_changed_or_signalled(stage: Stage) -> None:
    found = await stage.probe(
        etc="write('/etc/hosts')",
        other_configuration="os.listdir('/etc')",
        kernel="os.listdir('/sys/kernel')",
        terminals="os.listdir('/dev/pts')",
        others_memory="os.listdir('/dev/shm')",
        devices="os.listdir('/dev')",
        shadow="read('/etc/shadow')",
        usr="write('/usr/planted')",
        code=f"write({json.__file__!r})",
        common_tmp="write('/tmp/planted-by-a-chute')",
        own_user="os.setuid(0) if os.getuid() else os.setgid(1)",
        mounted="os.chroot('.')",
        agent=f"os.kill({os.getpid()}, 0)",
    )
    if not HERE.scoped and stage.wall is Wall.ALLOW_LIST:
        assert found.pop("agent") == "DONE"
    assert {name: result for name, result in found.items() if not refused(result)} == {}


HANDLE = """
class Handle(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint), ("kind", ctypes.c_int), ("bytes", ctypes.c_ubyte * 128)]
def by_handle(path):
    libc, handle, mount = ctypes.CDLL(None, use_errno=True), Handle(128), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), "no handle")
    opened = libc.open_by_handle_at(os.open(".", os.O_RDONLY), ctypes.byref(handle), os.O_RDONLY)
    if opened < 0:
        raise OSError(ctypes.get_errno(), "not opened")
    return os.read(opened, 100)
"""


async def test_the_capability_that_reads_past_modes_opens_no_file_by_its_handle(stage: Stage) -> None:
    secret = stage.home / "keys" / "operator.token"
    own = "(write('own'), by_handle(os.getcwd() + '/own'))[1]"
    found = await stage.probe(HANDLE, secret=f"by_handle({str(secret)!r})", own=own)
    assert refused(found["secret"])
    # Where the capability is there at all, the call works: it is the allow-list that refuses.
    assert found["own"] == ("DONE b'x'" if stage.wall is Wall.OWN_USER else "PermissionError")


async def test_what_a_process_must_not_have_it_does_not_have(stage: Stage) -> None:
    found = await stage.probe(
        core="__import__('resource').getrlimit(__import__('resource').RLIMIT_CORE)",
        status="{l.split()[0]: l.split()[1:] for l in open('/proc/self/status') if l[:6] in ('NoNewP', 'CapEff')}",
        descriptors="sorted(os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')"
        " if os.path.exists(f'/proc/self/fd/{n}'))",
        pipe="__import__('signal').getsignal(__import__('signal').SIGXFSZ)",
    )
    assert found["core"] == "DONE (0, 0)"
    assert "'NoNewPrivs:': ['1']" in found["status"]
    assert "memfd" not in found["descriptors"]
    capabilities = int(found["status"].partition("'CapEff:': ['")[2][:16], 16)
    assert capabilities == (1 << 2 if stage.wall is Wall.OWN_USER else 0)


async def test_each_placement_has_a_user_of_its_own_and_leaves_nothing_running(tmp_path: Path) -> None:
    async with stage_on(tmp_path / "home", WALLS[0]) as stage:
        escaping = program(
            """
            import subprocess
            subprocess.Popen(
                ["/bin/sh", "-c", "exec /usr/bin/env -i /bin/sleep 600 >/dev/null 2>&1 & exit 0"], start_new_session=True
            ).wait()
            server.serve_forever()
            """
        )
        first, second = order(escaping), order(HEALTHY)
        await stage.healthy(first)
        await stage.healthy(second)
        records = [RunFolder.of(stage.runs, item.placement_id).read() for item in (first, second)]
        users = [record.uid for record in records if record is not None]
        if stage.wall is not Wall.OWN_USER:
            assert users == [None, None]
            return
        assert len(set(users)) == 2
        assert all(uid is not None and FIRST_UID < uid <= LAST_UID for uid in users)
        await eventually(partial(two_run, users[0]), what="a process that has escaped")
        await stage.runtime.stop(first.placement_id)
        assert running(users[0]) == []
        assert running(users[1]) != []


async def test_shared_memory_of_a_forgotten_placement_is_freed(tmp_path: Path) -> None:
    async with stage_on(tmp_path / "home", WALLS[0]) as stage:
        keeping = program(
            "open(f'/dev/shm/kept-by-{os.getpid()}', 'w').write('x' * 100)\nserver.serve_forever()"
        )
        wanted = order(keeping)
        await stage.healthy(wanted)
        (seen,) = await stage.runtime.instances()
        name = f"kept-by-{seen.pid}"
        assert name in os.listdir("/dev/shm")
        await stage.runtime.stop(wanted.placement_id)
        await stage.runtime.forget(wanted.placement_id)
        # Without a user of its own nobody can tell whose it was.
        stays = stage.wall is not Wall.OWN_USER
        assert (name in os.listdir("/dev/shm")) is stays
        if stays:
            os.unlink(f"/dev/shm/{name}")


def running(uid: int | None) -> list[int]:
    """Return the pids of a user."""
    return [pid for pid, real in real_users() if real == uid and identify(pid) is not None]


def two_run(uid: int | None) -> bool:
    return len(running(uid)) == 2


async def test_secrets_that_a_spec_preloads_run_without_our_rights(stage: Stage) -> None:
    """Variables that make a program load code must not act while the child still has the agent's rights."""
    trap = stage.runs.parent / "trap"
    wanted = order(
        HEALTHY, env={"LD_PRELOAD": str(trap), "PYTHONSTARTUP": str(trap), "PYTHONHOME": "/nowhere"}
    )
    trap.write_text("")
    await stage.runtime.launch(wanted)
    output = RunFolder.of(stage.runs, wanted.placement_id).output
    await eventually(lambda: b"trap" in output.read_bytes(), what="the loader's complaint")
    # The workload's own loader complains, once for each program; the threshold's never does.
    assert b"threshold" not in output.read_bytes()


async def test_a_wall_of_folders_is_told_to_whoever_reads_the_output(tmp_path: Path) -> None:
    async with stage_on(tmp_path / "home", Wall.FOLDERS) as stage:
        wanted = order(HEALTHY)
        await stage.healthy(wanted)
        told = await stage.runtime.log_tail(wanted.placement_id, 5)
        assert told.startswith("gpupool: this workload is kept apart by folders only")
        assert "left out for this test" in told


async def test_folders_of_workloads_stay_closed(stage: Stage) -> None:
    wanted = order(HEALTHY)
    await stage.healthy(wanted)
    folder = RunFolder.of(stage.runs, wanted.placement_id)
    for path in (folder.path, *folder.private):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert folder.path.stat().st_uid == os.geteuid()
    assert stat.S_IMODE(folder.record_path.stat().st_mode) == 0o600


async def test_an_executable_that_is_not_there_is_a_failed_launch(stage: Stage) -> None:
    wanted = order(("/nowhere/serve",))
    seen = await stage.runtime.launch(wanted)
    assert seen.state is InstanceState.EXITED
    assert seen.reason == "launch: /nowhere/serve cannot be run: No such file or directory"
