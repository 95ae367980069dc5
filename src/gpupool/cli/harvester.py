"""``gpupool harvester``: let the stock Chia harvester of this machine use the pool, see that it does, and undo it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gpupool.cli.harvester_installing import ChiaRootOption, YesFlag, install, print_findings
from gpupool.cli.output import JsonFlag, print_plain_json

if TYPE_CHECKING:
    from gpupool.cli.checks.finding import Finding
    from gpupool.harvester.manifest import Manifest
    from gpupool.harvester.processes import HarvesterProcess

app = typer.Typer(help="Let a stock Chia harvester use the pool.", no_args_is_help=True)
app.command("install")(install)
_FAILED: Final = 5
_SHOWN_FAILURES: Final = 5


@app.callback()
def root() -> None:
    """Let a stock Chia harvester use the pool."""


@app.command()
def env(as_json: JsonFlag = False) -> None:
    """Print the variables that put the library into a harvester, for a shell or a start script of your own.

    Example: eval "$(gpupool harvester env)"
    """
    import shlex

    from gpupool.harvester.variables import PRELOAD

    found = _installed().about["environment"]
    if as_json:
        print_plain_json(found)
        return
    for name, value in found.items():
        more = f'"${{{PRELOAD}:+:${PRELOAD}}}"' if name == PRELOAD else ""
        typer.echo(f"export {name}={shlex.quote(value)}{more}")


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="What to start [nothing].")
    ] = None,
) -> None:
    """Have the sidecar running, then run a command with the library's variables; without one, only the sidecar.

    The sidecar goes on when the command ends. The exit code is the command's.

    Example: gpupool harvester run -- chia start harvester -r
    """
    from gpupool.core.errors import ForbiddenError, NotFoundError
    from gpupool.harvester.plan import Method
    from gpupool.harvester.sidecar import ensure
    from gpupool.harvester.variables import PRELOAD

    about = _installed().about
    if about["user"] is not None:
        raise ForbiddenError(
            f"This sidecar is {about['user']}'s, and systemd runs it.",
            remedy="systemctl start gpupool-sidecar.socket gpupool-sidecar.service",
        )
    if command and Method(about["method"]) is not Method.PTH:
        _refuse_other_daemons(command)
    places = _places(about)
    started = ensure(
        places.socket,
        about["sidecar_command"],
        places.sidecar_log,
        places.sidecar_record,
        {"GPUPOOL_HOME": about["home"]},
    )
    if started or not command:
        typer.echo(f"The sidecar {'is up' if started else 'runs already'} ({places.socket}).", err=True)
    if not command:
        return
    given = dict(about["environment"])
    if os.environ.get(PRELOAD):
        given[PRELOAD] = f"{given[PRELOAD]}:{os.environ[PRELOAD]}"
    try:
        os.execvpe(command[0], command, {**os.environ, **given})
    except OSError as error:
        raise NotFoundError(
            f"{command[0]} cannot be run: {error.strerror}.",
            remedy="Give its full path, or activate its environment.",
        ) from error


def _refuse_other_daemons(command: list[str]) -> None:
    from gpupool.core.errors import ConflictError
    from gpupool.harvester.processes import daemons_without
    from gpupool.harvester.variables import SIDECAR

    running = daemons_without(SIDECAR)
    if "start" in command and running:
        raise ConflictError(
            f"Chia's daemon (pid {running[0]}) runs without the variables, and would start the harvester without them.",
            remedy="Stop it first with `chia stop -d all`, then run this again.",
        )


@app.command()
def status(chia_root: ChiaRootOption = None, as_json: JsonFlag = False) -> None:
    """Say whether harvesters here really use the pool: what is loaded in them, the sidecar, its servers, what was lost.

    Exit code 0 when nothing fails (warnings are fine), 4 where nothing is installed, 5 when something fails.

    Examples: gpupool harvester status · gpupool harvester status --json
    """
    from gpupool.cli.checks.finding import Verdict
    from gpupool.cli.checks.harvester import check_processes, check_sidecar
    from gpupool.harvester.processes import harvesters
    from gpupool.harvester.sidecar import look, tail

    manifest = _installed()
    about, places = manifest.about, _places(manifest.about)
    processes, view = harvesters(Path(about["chia"])), look(places.socket)
    findings = [
        *_file_findings(manifest),
        *_config_findings(chia_root or Path(about["chia_root"])),
        *check_processes(processes, about, _restart(about)),
        *check_sidecar(view, places.socket, _start(about)),
    ]
    failures = tail(places.shim_log, _SHOWN_FAILURES)
    if as_json:
        print_plain_json({
            "installed": {name: value for name, value in about.items() if name != "environment"},
            "findings": [finding.to_json() for finding in findings],
            "harvesters": [_process_json(process) for process in processes],
            "sidecar": view.to_json(),
            "last_failures": failures,
        })  # fmt: skip
    else:
        print_findings(findings)
        for line in failures:
            typer.echo(f"      {line}")
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(_FAILED)


def _file_findings(manifest: "Manifest") -> "list[Finding]":
    from gpupool.cli.checks.finding import failed, passed, warned
    from gpupool.core.errors import ConflictError
    from gpupool.harvester.hook import NAME
    from gpupool.harvester.plan import Method
    from gpupool.harvester.units import DROPIN

    missing = [str(path) for path in manifest.files if not path.exists()]
    remedy = "Run `gpupool harvester install` again."
    if missing:
        return [failed("installation", f"{missing[0]} is missing", "Somebody has removed it.", remedy)]
    try:
        manifest.check_unchanged()
    except ConflictError as error:
        return [failed("installation", "changed", error.message, error.remedy)]
    if manifest.about["method"] != Method.DAEMON and not any(
        path.name in {NAME, DROPIN} for path in manifest.files
    ):
        why = "The way into the harvester is gone: its next start is without the pool."
        more = (
            "Run `gpupool harvester remove` again to finish, or `gpupool harvester install` to have it back."
        )
        return [warned("installation", "half removed", why, more)]
    return [passed("installation", f"{len(manifest.files)} files, as written")]


def _config_findings(chia_root: Path) -> "list[Finding]":
    from gpupool.cli.checks.finding import warned
    from gpupool.cli.checks.harvester import check_config
    from gpupool.core.errors import GpupoolError
    from gpupool.harvester.chia_config import read_config

    try:
        return list(check_config(read_config(chia_root)))
    except GpupoolError as error:
        return [warned("configuration", "not read", error.message, error.remedy)]


@app.command()
def remove(yes: YesFlag = False, as_json: JsonFlag = False) -> None:
    """Take back everything that `install` has written, and nothing else; files that were changed since are refused.

    While a harvester still has the library loaded, only the way in is removed, so that no look-up is lost: restart the
    harvester, then run this again. Exit code 5 where something is left to do.

    Example: gpupool harvester remove --yes
    """
    from gpupool.cli.harvester_removing import remove_everything, remove_way_in
    from gpupool.harvester.processes import harvesters

    manifest = _installed()
    manifest.check_unchanged()
    if not (yes or (os.isatty(0) and typer.confirm(f"Remove {len(manifest.files)} files?"))):
        typer.echo("Nothing was removed. To do it, run the same command with --yes.", err=True)
        raise typer.Exit(_FAILED)
    places = _places(manifest.about)
    mine = {str(places.library), f"{places.library} (deleted)"}
    loaded = [one.pid for one in harvesters(Path(manifest.about["chia"])) if one.library in mine]
    if loaded:
        removed, left = remove_way_in(manifest, loaded, _restart(manifest.about))
    else:
        removed, left = remove_everything(manifest, places)
    if as_json:
        print_plain_json({"removed": [str(path) for path in removed], "left": left})
    else:
        for path in removed:
            typer.echo(f"removed {path}")
        typer.echo(left or "Nothing of the installation is left.")
    if left:
        raise typer.Exit(_FAILED)


def _installed() -> "Manifest":
    from gpupool.cli.harvester_wishes import refuse_other_systems
    from gpupool.core.errors import NotFoundError
    from gpupool.harvester.manifest import Manifest
    from gpupool.harvester.places import state_home

    refuse_other_systems()
    manifest = Manifest.read(state_home() / "harvester")
    if not manifest.about:
        raise NotFoundError(
            f"Nothing is installed for a harvester (looked in {manifest.folder}).",
            remedy="Run `gpupool harvester install` first, or this as the user who did, with the same GPUPOOL_HOME.",
        )
    return manifest


def _places(about: dict[str, Any]) -> Any:
    from dataclasses import replace

    from gpupool.harvester.places import own_places

    return replace(
        own_places(),
        library=Path(about["library"]),
        socket=Path(about["socket"]),
        shim_log=Path(about["shim_log"]),
        home=Path(about["home"]),
    )


def _restart(about: dict[str, Any]) -> str:
    if about["unit"]:
        return f"systemctl restart {about['unit']}"
    if about["method"] == "daemon":
        return "`chia stop -d all`, then `gpupool harvester run -- chia start harvester`"
    return "chia start harvester -r"


def _start(about: dict[str, Any]) -> str:
    if about["units"] is None:
        return "`gpupool harvester run`"
    return f"systemctl {'' if about['of_system'] else '--user '}start gpupool-sidecar.socket gpupool-sidecar.service"


def _process_json(process: "HarvesterProcess") -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(process)
