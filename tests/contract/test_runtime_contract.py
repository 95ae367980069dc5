"""What every runtime promises behind its port, whatever it runs workloads with."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpupool.core.errors import InvalidInputError, NotFoundError
from gpupool.core.processes import identify
from gpupool.fleet.ports.runtime import Instance, InstanceState, Runtime
from gpupool.runtimes.process.runtime import ProcessRuntime
from polling import eventually
from workloads import HEALTHY, bare, order


@pytest_asyncio.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    """A runtime on a folder of its own; everything it ran is ended."""
    made: Runtime = ProcessRuntime(tmp_path / "runs", tmp_path / "cache")
    await made.adopt()
    yield made
    await made.close(stop_instances=True)


async def see(runtime: Runtime, placement_id: str, *states: InstanceState) -> Instance:
    """Return the instance once it is in one of ``states``."""

    async def look() -> Instance | None:
        found = {item.placement_id: item for item in await runtime.instances()}
        item = found.get(placement_id)
        return item if item is not None and item.state in states else None

    return await eventually(look, what=f"{placement_id} {states}")


async def test_a_server_becomes_healthy_on_its_port(runtime: Runtime) -> None:
    wanted = order(HEALTHY)
    first = await runtime.launch(wanted)
    assert first.state in {InstanceState.STARTING, InstanceState.RUNNING, InstanceState.HEALTHY}
    seen = await see(runtime, wanted.placement_id, InstanceState.HEALTHY)
    assert seen.port is not None
    assert 30000 <= seen.port <= 32767
    assert seen.pid is not None
    assert seen.reason is None
    assert seen.restarts == 0


async def test_launching_again_returns_the_one_that_runs(runtime: Runtime) -> None:
    wanted = order(HEALTHY)
    first = await runtime.launch(wanted)
    again = await runtime.launch(wanted)
    assert again.pid == first.pid
    assert len(await runtime.instances()) == 1


async def test_two_instances_get_two_ports(runtime: Runtime) -> None:
    first, second = order(HEALTHY), order(HEALTHY)
    ports = {(await runtime.launch(item)).port for item in (first, second)}
    assert len(ports) == 2


async def test_stop_returns_when_the_process_is_gone_and_may_be_repeated(runtime: Runtime) -> None:
    wanted = order(HEALTHY)
    launched = await runtime.launch(wanted)
    await runtime.stop(wanted.placement_id)
    assert launched.pid is not None
    assert identify(launched.pid) is None
    seen = await see(runtime, wanted.placement_id, InstanceState.EXITED)
    assert seen.reason == "stopped"
    await runtime.stop(wanted.placement_id)


async def test_stopping_and_forgetting_the_unknown_is_no_error(runtime: Runtime) -> None:
    await runtime.stop("pl-unknown")
    await runtime.forget("pl-unknown")
    assert await runtime.instances() == []


async def test_an_exit_is_told_with_its_code_and_last_words(runtime: Runtime) -> None:
    wanted = order(bare("import sys; print('no weights found'); sys.exit(3)"))
    await runtime.launch(wanted)
    seen = await see(runtime, wanted.placement_id, InstanceState.EXITED)
    assert seen.reason is not None
    assert seen.reason.startswith("exit: code 3 after ")
    assert seen.reason.endswith("no weights found")


async def test_a_missing_executable_is_told_at_once(runtime: Runtime) -> None:
    seen = await runtime.launch(order(("no-such-program-anywhere",), max_restarts=3))
    assert seen.state is InstanceState.EXITED
    assert seen.reason == "launch: the executable 'no-such-program-anywhere' is not on this machine"


async def test_an_order_with_an_image_only_is_refused_by_processes(runtime: Runtime) -> None:
    seen = await runtime.launch(order((), image="library/busybox"))
    assert seen.state is InstanceState.EXITED
    assert seen.reason == "launch: the image library/busybox needs a container runtime"


async def test_forget_drops_an_exited_instance_and_keeps_its_output(runtime: Runtime) -> None:
    wanted = order(bare("print('still readable')"))
    await runtime.launch(wanted)
    await see(runtime, wanted.placement_id, InstanceState.EXITED)
    await runtime.forget(wanted.placement_id)
    assert await runtime.instances() == []
    assert await runtime.log_tail(wanted.placement_id, 10) == "still readable\n"


async def test_forget_leaves_a_running_instance_alone(runtime: Runtime) -> None:
    wanted = order(HEALTHY)
    await runtime.launch(wanted)
    await runtime.forget(wanted.placement_id)
    assert [item.placement_id for item in await runtime.instances()] == [wanted.placement_id]


async def test_changed_wakes_up_for_every_new_state(runtime: Runtime) -> None:
    wanted = order(HEALTHY)
    await runtime.launch(wanted)
    states: list[InstanceState] = []
    while not states or states[-1] is not InstanceState.HEALTHY:
        await runtime.changed()
        states.append((await runtime.instances())[0].state)
    await runtime.stop(wanted.placement_id)
    await runtime.changed()
    assert (await runtime.instances())[0].state is InstanceState.EXITED


async def test_the_output_of_an_unknown_placement_is_not_found(runtime: Runtime) -> None:
    with pytest.raises(NotFoundError):
        await runtime.log_tail("pl-unknown", 10)


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", ".hidden"])
async def test_an_id_that_is_no_file_name_is_refused(runtime: Runtime, name: str) -> None:
    with pytest.raises(InvalidInputError):
        await runtime.launch(order(HEALTHY, placement_id=name))


async def test_log_tail_returns_the_last_lines(runtime: Runtime) -> None:
    wanted = order(bare("for n in range(100): print('line', n)"))
    await runtime.launch(wanted)
    await see(runtime, wanted.placement_id, InstanceState.EXITED)
    assert await runtime.log_tail(wanted.placement_id, 2) == "line 98\nline 99\n"
