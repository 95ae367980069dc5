"""Chia's own prover goes on while the sidecar is killed, frozen and gone, or has no servers.

Servers that are killed, frozen and slowed one after the other are in `test_shim_stock_prover`, which has a farm anyway.
"""

import signal
from collections.abc import Iterator

import pytest

import mainnet
from shim_farm import Farm, Plot, farm, plots

SOME = 12
"""Look-ups that are waited for before and after each disturbance."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with farm(tmp_path_factory.mktemp("farm")) as made:
        yield made


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[Plot]:
    folder = tmp_path_factory.mktemp("plots")
    return plots(folder, 1, mainnet.K32[:8])


@pytest.mark.slow  # what is frozen is waited for
@pytest.mark.timeout(400)
def test_every_answer_is_right_while_the_sidecar_is_killed_frozen_and_gone(
    running: Farm, given: list[Plot]
) -> None:
    """What the sidecar does not answer the bundled library does, and the log says so."""
    away = running.environment(fallback="away", timeout_ms="9000")
    with running.harvester(given, environment=away) as harvester:
        harvester.says(SOME)
        running.sidecar.kill()
        harvester.says(SOME)
        running.sidecar.start()
        harvester.says(SOME)
        running.sidecar.signal(signal.SIGSTOP)
        harvester.says(SOME)
        running.sidecar.signal(signal.SIGCONT)
        for server in running.servers:
            server.signal(signal.SIGSTOP)
        harvester.says(4)
        for server in running.servers:
            server.signal(signal.SIGCONT)
        harvester.says(SOME)
        harvester.ended()
        assert harvester.wrong() == [], [x for x in running.failures() if "answered by" not in x]
    told = running.failures()
    assert any(" answered by the bundled library" in line for line in told)
    assert [line for line in told if "answered by the bundled library" not in line] == []


@pytest.mark.slow  # its farm takes a while to start, and only the one above needs it too
@pytest.mark.timeout(400)
def test_a_harvester_without_any_pool_goes_on_and_says_what_it_lost(running: Farm, given: list[Plot]) -> None:
    running.sidecar.kill()
    running.socket.unlink(missing_ok=True)
    running.failures()
    with running.harvester(given[:2], "--rounds", "2", "--threads", "2") as harvester:
        assert len(harvester.ended()) == len(harvester.wrong()) == 8
    assert 1 <= len(running.failures()) <= 8
