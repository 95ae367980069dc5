"""Whose harvester it is decides where things lie; what systemd reads back is what was meant; other systems are told."""

import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpupool.cli.harvester import app
from gpupool.cli.harvester_wishes import refuse_other_systems
from gpupool.core.errors import EnvironmentProblemError, ForbiddenError, InvalidInputError, UnsupportedError
from gpupool.harvester.chia_env import ChiaEnvironment, Kind
from gpupool.harvester.places import own_places, places_for
from gpupool.harvester.plan import Installation, Method
from gpupool.harvester.units import SidecarUnit, dropin
from gpupool.harvester.variables import ShimSettings

VENV = ChiaEnvironment(kind=Kind.VENV, root=Path("/venv"), site_packages=Path("/venv/site"))
FROZEN = ChiaEnvironment(kind=Kind.FROZEN, root=Path("/opt/chia"))


@pytest.fixture
def farmer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who is not root, with a home of his own."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setenv("HOME", "/home/farmer")
    for name in ("GPUPOOL_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root, without a state folder that was named."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("GPUPOOL_HOME", raising=False)


@pytest.mark.usefixtures("farmer")
def test_a_user_installs_for_himself_without_root_and_for_nobody_else() -> None:
    places = places_for(12345)
    assert places.folder == Path("/home/farmer/.local/state/gpupool/harvester")
    assert places.library.parent == places.socket.parent == places.folder
    assert places.units == Path("/home/farmer/.config/systemd/user")
    assert (places.user, places.of_system) == (None, False)
    with pytest.raises(ForbiddenError, match="belongs to root"):
        places_for(0)


@pytest.mark.usefixtures("root")
def test_root_installs_for_another_user_where_that_one_can_read() -> None:
    places = places_for(65534)
    assert places.library == Path("/usr/local/lib/gpupool/libgpupool_harvester.so")
    assert places.socket == Path("/run/gpupool-sidecar/sidecar.sock")
    assert places.units == Path("/etc/systemd/system")
    assert places.user is not None
    assert places.of_system
    assert places_for(0).user is None
    assert places_for(0, Path("/u"), Path("/s")).units == Path("/u")


def installation(
    method: Method, chia: ChiaEnvironment, unit: str | None = None, owner: int = 0
) -> Installation:
    places = places_for(owner)
    return Installation(
        chia=chia, chia_root=Path("/c"), method=method, places=places, sidecar_command=["x"],
        shim=ShimSettings(socket=places.socket),
        unit=unit,
    )  # fmt: skip


@pytest.mark.usefixtures("root")
def test_a_way_in_that_cannot_be_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="reads no"):
        installation(Method.PTH, FROZEN)
    with pytest.raises(InvalidInputError, match="belongs to a unit"):
        installation(Method.SYSTEMD, VENV)
    with pytest.raises(InvalidInputError, match="belongs to a unit"):
        installation(Method.PTH, VENV, "chia.service")
    for name in ("chia", "../chia.service"):
        with pytest.raises(InvalidInputError, match="no name of a service unit"):
            installation(Method.SYSTEMD, VENV, name)
    with pytest.raises(InvalidInputError, match="only --method systemd"):
        installation(Method.DAEMON, VENV, owner=65534)


@pytest.mark.usefixtures("root")
def test_each_way_in_writes_its_own_files_and_no_others() -> None:
    def named(made: Installation) -> set[str]:
        return {file.path.name for file in made.files(b"library")}

    units = {"libgpupool_harvester.so", "gpupool-sidecar.service", "gpupool-sidecar.socket"}
    assert named(installation(Method.DAEMON, FROZEN)) == units
    assert named(installation(Method.PTH, VENV)) == units | {"gpupool-harvester.pth"}
    other = installation(Method.SYSTEMD, FROZEN, "chia.service", owner=65534)
    assert named(other) == units | {"50-gpupool.conf"}
    service = next(
        file for file in other.files(b"") if file.path.name == "gpupool-sidecar.service"
    ).content.decode()
    assert f"User={other.places.user}\nStateDirectory=gpupool-sidecar\n" in service
    assert "WantedBy=multi-user.target" in service
    assert other.environment()["LD_PRELOAD"] == str(other.places.library)


def test_what_systemd_reads_back_is_what_was_meant() -> None:
    unit = SidecarUnit(
        command=["/opt/my pool/python", "-n", "a:1 weight=2", "100%", "$HOME", 'say "x"'],
        socket=Path("/run/50%/s"),
        home=Path("/var/lib/my pool"),
        secrets=Path("/etc/a%b"),
    )
    service = unit.service().decode()
    assert 'ExecStart="/opt/my pool/python" -n "a:1 weight=2" 100%% "$$HOME" "say \\"x\\""\n' in service
    assert 'Environment="GPUPOOL_HOME=/var/lib/my pool"\n' in service
    assert "EnvironmentFile=-/etc/a%%b\n" in service
    assert "User=" not in service
    assert "ListenStream=/run/50%%/s\n" in unit.socket_unit().decode()
    assert 'Environment="LD_PRELOAD=/a b/$x.so"\n' in dropin({"LD_PRELOAD": "/a b/$x.so"}).decode()


@pytest.mark.parametrize("path", [Path("s"), Path("/" + "x" * 107), Path("/a\nb")])
def test_a_socket_that_the_library_could_not_use_is_refused(path: Path) -> None:
    with pytest.raises(InvalidInputError):
        ShimSettings(socket=path)


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_other_systems_are_told_plainly(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr("gpupool.cli.harvester_wishes.SYSTEM", system)
    with pytest.raises(EnvironmentProblemError, match="Windows and macOS cannot use the pool yet") as told:
        refuse_other_systems()
    assert told.value.exit_code == 3


@pytest.mark.parametrize("command", ["install", "status", "env", "run", "remove"])
def test_every_command_tells_so_before_it_needs_what_only_posix_has(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setitem(sys.modules, "pwd", None)
    monkeypatch.delitem(sys.modules, "gpupool.harvester.places", raising=False)
    monkeypatch.delattr(os, "geteuid")
    monkeypatch.setattr("gpupool.cli.harvester_wishes.SYSTEM", "win32")
    result = CliRunner().invoke(app, [command])
    assert isinstance(result.exception, EnvironmentProblemError)


def test_the_callers_own_places_follow_the_state_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path))
    assert own_places().folder == tmp_path / "harvester"
    assert own_places().home == tmp_path
