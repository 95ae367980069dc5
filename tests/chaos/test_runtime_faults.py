"""Workloads that misbehave, on real processes: the runtime says what happened and leaves nothing behind."""

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from gpupool.core.processes import ProcessIdentity, identify
from gpupool.fleet.ports.runtime import Instance, InstanceState, LaunchOrder
from gpupool.runtimes.process import confinement
from gpupool.runtimes.process.ending import survivors
from gpupool.runtimes.process.health import HealthTimings
from gpupool.runtimes.process.runtime import ProcessRuntime
from gpupool.runtimes.process.supervising import Policy
from polling import eventually
from workloads import HEALTHY, UNHEALTHY, bare, order, program

QUICK = Policy(
    health=HealthTimings(
        first_pause=0.05, starting_pause=0.1, steady_pause=0.05, timeout=2.0, unhealthy_limit=0.3
    ),
    first_backoff=0.02,
    watch_pause=0.1,
)


class Stage:
    """A runtime with short spans on a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.cache = folder / "cache"
        self.runtime = ProcessRuntime(self.runs, self.cache, policy=QUICK)

    async def again(self, policy: Policy = QUICK) -> Sequence[Instance]:
        """Let go of everything and start a second runtime on the same folder, as a restarted agent does."""
        await self.runtime.close(stop_instances=False)
        self.runtime = ProcessRuntime(self.runs, self.cache, policy=policy)
        return await self.runtime.adopt()

    async def see(self, wanted: LaunchOrder, check: Callable[[Instance], bool]) -> Instance:
        """Return the instance once ``check`` holds for it."""

        async def look() -> Instance | None:
            found = await self.runtime.instances()
            return next(
                (item for item in found if item.placement_id == wanted.placement_id and check(item)), None
            )

        return await eventually(look, what=wanted.placement_id)

    async def over(self, wanted: LaunchOrder) -> str:
        """Return why the instance is over once it is, and check that nothing of it runs."""
        seen = await self.see(wanted, lambda item: item.state is InstanceState.EXITED)
        assert survivors(self.runs, wanted.placement_id, None) == []
        return seen.reason or ""

    async def healthy(self, wanted: LaunchOrder) -> Instance:
        """Return the instance once it is healthy."""
        return await self.see(wanted, lambda item: item.state is InstanceState.HEALTHY)

    def left(self, wanted: LaunchOrder) -> list[ProcessIdentity]:
        """Return what runs of a placement, found by its mark."""
        return survivors(self.runs, wanted.placement_id, None)


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage that is cleared at the end."""
    made = Stage(tmp_path)
    await made.runtime.adopt()
    yield made
    await made.runtime.close(stop_instances=True)


async def test_a_workload_that_exits_is_restarted_until_the_limit(stage: Stage) -> None:
    wanted = order(bare("raise SystemExit(7)"), max_restarts=2)
    await stage.runtime.launch(wanted)
    assert (await stage.over(wanted)).startswith("exit: code 7 after ")
    (seen,) = await stage.runtime.instances()
    assert seen.restarts == 2


async def test_a_workload_that_dies_later_comes_back_on_its_port(stage: Stage) -> None:
    wanted = order(HEALTHY, max_restarts=1)
    await stage.runtime.launch(wanted)
    first = await stage.healthy(wanted)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    again = await stage.see(
        wanted, lambda item: item.state is InstanceState.HEALTHY and item.pid != first.pid
    )
    assert (again.port, again.restarts) == (first.port, 1)
    assert re.match(r"signal: SIGKILL after [\d.]+ s", again.reason or "")


async def test_one_that_never_gets_healthy_is_ended(stage: Stage) -> None:
    wanted = order(UNHEALTHY, start_timeout_seconds=1.0)
    await stage.runtime.launch(wanted)
    assert (await stage.over(wanted)).startswith("unhealthy: not healthy within 1 s of its launch (")


async def test_one_that_never_listens_is_ended(stage: Stage) -> None:
    wanted = order(bare("import signal; signal.pause()"), start_timeout_seconds=0.5)
    await stage.runtime.launch(wanted)
    reason = await stage.over(wanted)
    assert reason == "unhealthy: not healthy within 0.5 s of its launch (nothing listens on its port)"


async def test_one_that_hangs_after_it_was_healthy_is_ended(stage: Stage) -> None:
    wanted = order(HEALTHY)
    policy = Policy(health=HealthTimings(steady_pause=0.05, timeout=0.3, unhealthy_limit=0.3))
    await stage.again(policy)
    await stage.runtime.launch(wanted)
    seen = await stage.healthy(wanted)
    assert seen.pid is not None
    os.kill(seen.pid, signal.SIGSTOP)
    await stage.see(wanted, lambda item: item.state is InstanceState.RUNNING)
    await stage.runtime.stop(wanted.placement_id, 0)
    assert stage.left(wanted) == []


async def test_health_that_fails_for_long_is_the_reason(stage: Stage) -> None:
    breaks = program(
        """
        def shut(handler): handler.send_response(500); handler.send_header("Content-Length", "0"); handler.end_headers()
        well = Handler.do_GET
        def do_GET(self):
            os.path.exists("broken") and shut(self) or os.path.exists("broken") or well(self)
        Handler.do_GET = do_GET
        server.serve_forever()
        """
    )
    wanted = order(breaks)
    await stage.runtime.launch(wanted)
    await stage.healthy(wanted)
    (stage.runs / wanted.placement_id / "work" / "broken").touch()
    assert await stage.over(wanted) == "unhealthy: no good answer for 0.3 s (it answers 500)"


async def test_one_that_ignores_the_polite_signal_is_killed_after_the_grace(stage: Stage) -> None:
    deaf = program("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); server.serve_forever()")
    wanted = order(deaf)
    await stage.runtime.launch(wanted)
    await stage.healthy(wanted)
    await stage.runtime.stop(wanted.placement_id, 0.2)
    assert stage.left(wanted) == []
    assert await stage.over(wanted) == "stopped"


async def test_a_second_stop_shortens_the_grace(stage: Stage) -> None:
    deaf = program("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); server.serve_forever()")
    wanted = order(deaf)
    await stage.runtime.launch(wanted)
    await stage.healthy(wanted)
    patient = asyncio.create_task(stage.runtime.stop(wanted.placement_id, 600))
    await stage.see(wanted, lambda item: item.state is InstanceState.STOPPING)
    await stage.runtime.stop(wanted.placement_id, 0)
    await patient
    assert stage.left(wanted) == []


async def test_children_in_the_group_and_outside_it_end_with_the_workload(stage: Stage) -> None:
    family = program(
        """
        import subprocess
        pause = [sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"]
        subprocess.Popen(pause)
        subprocess.Popen(pause, start_new_session=True)
        orphan = f"import subprocess; subprocess.Popen({pause!r}, start_new_session=True)"
        subprocess.Popen([sys.executable, "-c", orphan]).wait()
        server.serve_forever()
        """
    )
    wanted = order(family)
    await stage.runtime.launch(wanted)
    await stage.healthy(wanted)
    await eventually(lambda: len(stage.left(wanted)) == 4)
    await stage.runtime.stop(wanted.placement_id, 0.2)
    assert stage.left(wanted) == []


async def test_children_do_not_outlive_a_leader_that_exits(stage: Stage) -> None:
    leaves = bare(
        """
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
        subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        """
    )
    wanted = order(leaves)
    await stage.runtime.launch(wanted)
    assert (await stage.over(wanted)).startswith("exit: code 0 after ")


async def test_one_that_eats_memory_is_ended_with_what_it_used(stage: Stage) -> None:
    wanted = order(
        program("hoard = bytearray(os.urandom(1)) * (200 << 20); server.serve_forever()"), memory_mib=64
    )
    await stage.runtime.launch(wanted)
    found = re.fullmatch(r"memory: used (\d+) MiB of 64", await stage.over(wanted))
    assert found is not None
    assert int(found[1]) > 64


async def test_the_memory_of_children_counts(stage: Stage) -> None:
    child = "import os, signal; hoard = bytearray(os.urandom(1)) * (200 << 20); signal.pause()"
    wanted = order(
        program(
            f"import subprocess; subprocess.Popen([sys.executable, '-c', {child!r}]); server.serve_forever()"
        ),
        memory_mib=128,
    )
    await stage.runtime.launch(wanted)
    assert (await stage.over(wanted)).startswith("memory: used ")


async def test_a_fixed_port_that_is_taken_is_told_before_anything_starts(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        seen = await stage.runtime.launch(order(HEALTHY, port=port))
    assert (seen.state, seen.reason) == (InstanceState.EXITED, f"launch: port {port} is taken")


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ({"status": "ok"}, "another process answers on port {port}"),
        ({"instance_id": "inst-other"}, "another process answers on its port"),
    ],
)
async def test_a_stranger_that_answers_on_our_port_is_not_ours(
    stage: Stage, free_port: int, answer: dict[str, str], fault: str
) -> None:
    """The workload never binds; this test does in its place, and its perfect 200 must not count."""

    async def serve(_: web.Request) -> web.Response:
        return web.json_response(answer)

    wanted = order(bare("import signal; signal.pause()"), port=free_port, start_timeout_seconds=1.0)
    await stage.runtime.launch(wanted)
    app = web.Application()
    app.router.add_get("/health", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", free_port).start()
    try:
        reason = await stage.over(wanted)
    finally:
        await runner.cleanup()
    told = fault.format(port=free_port)
    assert reason == f"unhealthy: not healthy within 1 s of its launch ({told})"


async def test_a_workload_sees_nothing_of_the_agents_environment(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPOOL_TOKEN", "secret")
    chosen = {"CHOSEN": "1", "CUDA_VISIBLE_DEVICES": "7", "PORT": "1"}
    wanted = order(HEALTHY, env=chosen, gpu_uuids=("GPU-a",))
    await stage.runtime.launch(wanted)
    seen = await stage.healthy(wanted)
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{seen.port}/env") as answer:
        environment = json.loads(await answer.read())
    assert "secret" not in environment.values()
    assert environment["CHOSEN"] == "1"
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert environment["PORT"] == str(seen.port)
    folder = stage.runs / wanted.placement_id
    assert environment["HOME"] == str(folder / "home")
    assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}


async def test_a_run_survives_its_runtime_and_the_next_one_adopts_it(stage: Stage) -> None:
    wanted = order(HEALTHY, max_restarts=1)
    await stage.runtime.launch(wanted)
    first = await stage.healthy(wanted)
    await stage.runtime.close(stop_instances=False)
    assert first.pid is not None
    assert identify(first.pid) is not None
    (adopted,) = await stage.again()
    assert (adopted.pid, adopted.port) == (first.pid, first.port)
    assert adopted.state is InstanceState.HEALTHY
    os.kill(first.pid, signal.SIGKILL)
    again = await stage.see(
        wanted, lambda item: item.state is InstanceState.HEALTHY and item.pid != first.pid
    )
    assert again.restarts == 1


async def test_one_that_died_unwatched_is_told_with_its_children_ended(stage: Stage) -> None:
    family = program("import subprocess; subprocess.Popen(['sleep', '1000']); server.serve_forever()")
    wanted = order(family)
    await stage.runtime.launch(wanted)
    seen = await stage.healthy(wanted)
    await stage.runtime.close(stop_instances=False)
    assert seen.pid is not None
    os.kill(seen.pid, signal.SIGKILL)
    await eventually(lambda: identify(seen.pid or 0) is None)
    await stage.again()
    assert await stage.over(wanted) == "exit: code unknown, while no agent ran"


async def test_a_child_that_no_record_names_is_ended(stage: Stage) -> None:
    """As after a crash between the launch and the second write of the record."""
    wanted = order(HEALTHY)
    await stage.runtime.launch(wanted)
    await stage.healthy(wanted)
    await stage.runtime.close(stop_instances=False)
    path = stage.runs / wanted.placement_id / "record.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "phase": "launching", "process": None}))
    await stage.again()
    assert await stage.over(wanted) == "lost: the agent ended while it launched this"


async def test_a_record_of_another_boot_names_nobody(stage: Stage) -> None:
    wanted = order(HEALTHY)
    await stage.runtime.launch(wanted)
    await stage.healthy(wanted)
    await stage.runtime.stop(wanted.placement_id)
    await stage.runtime.close(stop_instances=False)
    path = stage.runs / wanted.placement_id / "record.json"
    record = json.loads(path.read_text())
    stranger = {"pid": os.getpid(), "start_ticks": 1, "boot_id": "another boot"}
    path.write_text(json.dumps({**record, "phase": "running", "process": stranger}))
    (seen,) = await stage.again()
    assert (seen.state, seen.reason) == (InstanceState.EXITED, "lost: machine restarted")


async def test_a_stop_during_the_back_off_ends_it_at_once(stage: Stage) -> None:
    await stage.again(Policy(first_backoff=600))
    wanted = order(bare("raise SystemExit(1)"), max_restarts=5)
    await stage.runtime.launch(wanted)
    await stage.see(wanted, lambda item: item.reason is not None)
    await stage.runtime.stop(wanted.placement_id)
    assert await stage.over(wanted) == "stopped"


async def test_output_is_cut_while_the_workload_goes_on_writing(stage: Stage) -> None:
    wanted = order(
        program("print('x' * (9 << 20), flush=True); print('after', flush=True); server.serve_forever()")
    )
    await stage.runtime.launch(wanted)
    folder = stage.runs / wanted.placement_id
    await eventually((folder / "output.log.1").exists)
    assert (folder / "output.log.1").stat().st_size <= 16 << 20
    await eventually(lambda: (folder / "output.log").stat().st_size < 1 << 20)
    assert (await stage.runtime.log_tail(wanted.placement_id, 1)) == "after\n"


async def test_a_fault_of_the_runtime_itself_ends_the_run_and_is_told(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("gpupool.runtimes.process.supervising.probing.ask", broken)
    wanted = order(HEALTHY)
    await stage.runtime.launch(wanted)
    assert await stage.over(wanted) == "fault: ZeroDivisionError in the agent, whose log says more"


async def test_code_outside_the_wall_is_named_in_the_reason(stage: Stage, tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text("raise SystemExit(2)")
    wanted = order(("python", str(script)))
    await stage.runtime.launch(wanted)
    reason = await stage.over(wanted)
    assert reason.startswith("exit: code 2 after ")
    named = f"the pool's wall keeps workloads from reading {script}: " in reason
    assert named is (confinement.look().wall is not confinement.Wall.FOLDERS)
