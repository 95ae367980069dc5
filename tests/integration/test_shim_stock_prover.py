"""Chia's own prover, unchanged, on compressed plots: through the library, the sidecar and the servers comes the proof.

The bundled library beside it shows what a harvester has today: the same answers, save the one that it loses.
"""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import mainnet
from gpupool.harvester.building import COMPILERS, compile_library
from minted_plots import mint
from shim_farm import Farm, farm, plots, slowed

SOME = 8
"""Look-ups that are waited for before and after each disturbance."""
EQUAL_BUCKET = mainnet.K32[46]
"""At C7 both x of one of its pairs begin alike, which the bundled library cannot read."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with farm(tmp_path_factory.mktemp("farm")) as made:
        yield made


SLOW = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    ("level", "count"),
    [(1, 12), (2, 4), (3, 4), (4, 3), (5, 2), *(pytest.param(level, 4, marks=SLOW) for level in (6, 7))],
)
def test_qualities_and_proofs_are_the_known_ones(
    running: Farm, tmp_path: Path, level: int, count: int
) -> None:
    given = plots(tmp_path, level, mainnet.K32[level : level + count])
    threads = (
        "4" if level < 6 else "1"
    )  # two servers with a thread each answer four proofs of C7 only just in time
    with running.harvester(given, "--rounds", "1", "--threads", threads) as harvester:
        lines = harvester.ended(300)
        assert len(lines) == 2 * count
        assert harvester.wrong() == []
    assert running.failures() == []


def test_no_look_up_is_lost_while_servers_are_killed_frozen_and_slowed(running: Farm, tmp_path: Path) -> None:
    given = [plot for level in (1, 2, 3) for plot in plots(tmp_path, level, mainnet.K32[:4])]
    one, other = running.servers
    patient = running.environment(timeout_ms="19000")
    with running.harvester(given, environment=patient) as harvester:
        harvester.says(SOME)
        one.kill()
        harvester.says(SOME)
        one.start()
        running.ready()
        other.signal(signal.SIGSTOP)
        harvester.says(SOME)
        other.signal(signal.SIGCONT)
        harvester.says(SOME)
        with slowed(one):
            harvester.says(SOME)
        harvester.says(SOME)
        harvester.ended()
        assert harvester.wrong() == [], [x for x in running.failures() if "answered by" not in x]
    assert running.failures() == []


def test_the_library_gets_in_by_a_line_in_a_pth_file_too(running: Farm, tmp_path: Path) -> None:
    with running.harvester(plots(tmp_path, 1, mainnet.K32[:2]), "--rounds", "1", pth=True) as harvester:
        assert len(harvester.ended()) == 4
        assert harvester.wrong() == []
    asked = (running.folder / "sidecar.log").read_text()
    assert f"id = shim-{harvester.child.pid}-1," in asked


def test_a_lost_quality_is_swallowed_by_the_prover_and_told_by_the_library(
    running: Farm, tmp_path: Path
) -> None:
    """The prover hashes zeros; that this is no error is why the library counts."""
    given = plots(tmp_path, 1, mainnet.K32[:1])
    gone = running.environment(sidecar="unix:/nowhere")
    with running.harvester(given, "--rounds", "1", environment=gone) as harvester:
        quality, proof = harvester.ended()
    assert (len(str(quality["found"])), given[0].right(quality)) == (68, False)
    assert "GRResult_Failed" in str(proof["found"])
    words = [line.split(" ")[2:5] for line in running.failures()]
    assert words == [["quality", "C1", "unreachable"], ["proof", "C1", "unreachable"]]


@pytest.mark.parametrize(
    "settings", [{"sidecar": "unix:/nowhere", "fallback": "away"}, {"fallback": "always"}]
)
def test_the_bundled_library_takes_over_where_it_may(
    running: Farm, tmp_path: Path, settings: dict[str, str]
) -> None:
    given = plots(tmp_path, 1, mainnet.K32[:2])
    with running.harvester(given, "--rounds", "1", environment=running.environment(**settings)) as harvester:
        harvester.ended()
        assert harvester.wrong() == []
    told = running.failures()
    assert len(told) == (4 if settings["fallback"] == "away" else 0)
    assert all(line.endswith("answered by the bundled library") for line in told)


def test_a_minted_plot_is_one_for_the_bundled_library_as_well(running: Farm, tmp_path: Path) -> None:
    given = plots(tmp_path, 1, mainnet.K32[:1])
    with running.harvester(given, "--rounds", "1", stock=True) as harvester:
        harvester.ended()
        assert harvester.wrong() == []
    assert mint(given[0].known, 1, tmp_path / "again").read_bytes() == given[0].path.read_bytes()


@pytest.mark.slow  # the bundled library takes half a minute to find nothing, on a busy machine several
@pytest.mark.timeout(800)
def test_a_proof_that_the_bundled_library_loses_is_found(running: Farm, tmp_path: Path) -> None:
    given = plots(tmp_path, 7, [EQUAL_BUCKET])
    with running.harvester(given, "--rounds", "1") as ours:
        ours.ended(200)
        assert ours.wrong() == []
    with running.harvester(
        given, "--rounds", "1", environment=running.environment(fallback="always")
    ) as stock:
        stock.ended(500)
        assert [line["found"] for line in stock.wrong()] == [["GRResult_NoProof received"]]


@pytest.mark.slow  # under a sanitizer the prover takes seconds for its threads
@pytest.mark.timeout(300)
def test_the_prover_under_sanitizers(running: Farm, tmp_path: Path) -> None:
    library = tmp_path / "shim.so"
    compile_library(
        library, "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-D_FORTIFY_SOURCE=0"
    )
    compiler = next(filter(None, map(shutil.which, COMPILERS)))
    found = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    given = plots(tmp_path, 1, mainnet.K32[:4])
    kept, running.library = running.library, library
    # The interpreter keeps what it has; the leaks looked for are in the driver's test.
    environment = running.environment() | {"ASAN_OPTIONS": "detect_leaks=0"}
    try:
        with running.harvester(given, "--rounds", "1", environment=environment, preload=found) as harvester:
            assert len(harvester.ended(200)) == 8
            assert harvester.wrong() == []
    finally:
        running.library = kept
    assert running.failures() == []
