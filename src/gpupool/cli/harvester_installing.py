"""``gpupool harvester install``: what is there, what would be done, and, once that is agreed to, done."""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gpupool.cli.output import JsonFlag, print_plain_json

if TYPE_CHECKING:
    from gpupool.cli.checks.finding import Finding
    from gpupool.harvester.manifest import Step
    from gpupool.harvester.plan import Installation

_NOT_AGREED: Final = 5
YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
ChiaRootOption = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Chia's own folder [CHIA_ROOT, else ~/.chia/mainnet].")
]


def install(
    chia: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Chia's virtual environment, or its clone, or the program chia [found]."
        ),
    ] = None,
    servers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[:PORT],…",
            help="Recompute servers or proxies, as with -n of the proxy. May be repeated [as installed before].",
        ),
    ] = None,
    nodes_file: Annotated[
        Path | None, typer.Option(help="A watched list of servers, where they need TLS or tokens.")
    ] = None,
    control: Annotated[
        str | None, typer.Option(metavar="URL", help="Control, whose recompute servers are used.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the token for control's feed.")] = None,
    method: Annotated[
        str, typer.Option(metavar="pth|systemd|daemon", help="How the library gets into the harvester.")
    ] = "pth",
    unit: Annotated[
        str | None, typer.Option(help="With --method systemd: the harvester's own service unit.")
    ] = None,
    fallback: Annotated[
        str,
        typer.Option(
            metavar="off|away|always",
            help="When this machine computes itself: never, without the pool, always.",
        ),
    ] = "away",
    timeout_ms: Annotated[
        int, typer.Option(help="Most time of one look-up, 100 to 19000 ms; Chia's own limit is 20 s.")
    ] = 15_000,
    alert_command: Annotated[
        Path | None, typer.Option(metavar="PROGRAM", help="Program that gets the sidecar's alerts as JSON.")
    ] = None,
    chia_root: ChiaRootOption = None,
    socket: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where the sidecar listens [the state folder].")
    ] = None,
    units: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Folder of the unit files [where systemd of this user looks]."),
    ] = None,
    yes: YesFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Let the stock Chia harvester of this machine have its Bladebit-compressed plots (C1 to C7) computed by the pool.

    Shows its plan first, and changes nothing of Chia's but one file in its environment (--method pth). Run it again
    to change something: only servers and the alert's program are remembered. `gpupool harvester remove` takes
    everything back. Linux only. Exit code 5 where it was not agreed to.

    Examples:

      gpupool harvester install --servers 192.168.1.10,192.168.1.11

      gpupool harvester install --chia ~/chia-blockchain/venv --servers 192.168.1.10 --yes

      sudo gpupool harvester install --method systemd --unit chia-harvester.service --servers 192.168.1.10
      --chia /home/farmer/chia-blockchain/venv --chia-root /home/farmer/.chia/mainnet
    """
    from gpupool.cli.checks.harvester import check_config, check_fits, check_versions
    from gpupool.cli.harvester_wishes import Wishes, refuse_other_systems
    from gpupool.harvester.building import shim_library
    from gpupool.harvester.chia_config import chia_root as root_of
    from gpupool.harvester.chia_config import read_config
    from gpupool.harvester.chia_env import find
    from gpupool.harvester.manifest import Manifest
    from gpupool.harvester.places import places_for

    refuse_other_systems()
    environment, root = find(chia), root_of(chia_root).absolute()
    config = read_config(root)
    places = places_for(config.owner, units, socket)
    manifest = Manifest.read(places.folder)
    wishes = Wishes(
        servers=servers, nodes_file=nodes_file, control=control, token_file=token_file, method=method,
        unit=unit, fallback=fallback, timeout_ms=timeout_ms, alert_command=alert_command,
        keep_units=units is not None,
    )  # fmt: skip
    installation = wishes.installation(environment, root, places, manifest.about)
    findings = [*check_versions(environment), check_fits(environment), *check_config(config)]
    _refuse_unfit(findings)
    with tempfile.TemporaryDirectory() as folder:
        files = installation.files(shim_library(Path(folder)).read_bytes())
    steps = manifest.plan(files)
    if not as_json:
        _show(installation, findings, steps)
    changes, again = _changes(steps, manifest.about, installation), bool(manifest.about)
    agreed = yes or not changes or (not as_json and _asks())
    if agreed:
        manifest.carry_out(files, installation.about())
    left = installation.next_steps(again=again)
    _close(left, findings, steps, agreed=agreed, changed=agreed and changes, as_json=as_json)


def _refuse_unfit(findings: "list[Finding]") -> None:
    from gpupool.cli.checks.finding import Verdict
    from gpupool.core.errors import UnsupportedError

    for finding in findings:
        if finding.verdict is Verdict.FAIL and finding.name == "decompressor":
            raise UnsupportedError(
                f"This Chia has {finding.measured}: {finding.why}", remedy=finding.remedy or ""
            )


def _changes(steps: "list[Step]", about: dict[str, Any], installation: "Installation") -> bool:
    return any(step.action != "keep" for step in steps) or about != installation.about()


def _asks() -> bool:
    return sys.stdin.isatty() and typer.confirm("Do this?")


def _show(installation: "Installation", findings: "list[Finding]", steps: "list[Step]") -> None:
    from gpupool.harvester.plan import WORDS

    typer.echo(f"Chia: {installation.chia.root} ({installation.chia.kind})")
    typer.echo(f"Way in: {WORDS[installation.method]}")
    typer.echo(f"Sidecar: {installation.sidecar_words()}")
    print_findings(findings)
    typer.echo("Files:")
    for step in steps:
        typer.echo(f"  {step.action:8} {step.path}")
        typer.echo(f"           {step.why}")


def print_findings(findings: "list[Finding]") -> None:
    """Print findings as `gpupool recompute doctor` does."""
    from gpupool.cli.invocation import as_typed

    for finding in findings:
        typer.echo(f"{finding.verdict.value:4}  {finding.name}: {finding.measured}")
        if finding.why is not None:
            typer.echo(as_typed(f"      {finding.why} {finding.remedy}"))


def _close(
    left: list[str],
    findings: "list[Finding]",
    steps: "list[Step]",
    *,
    agreed: bool,
    changed: bool,
    as_json: bool,
) -> None:
    from gpupool.cli.invocation import as_typed
    from gpupool.harvester.manifest import as_json as steps_json

    if as_json:
        print_plain_json({
            "plan": steps_json(steps),
            "findings": [finding.to_json() for finding in findings],
            "done": agreed,
            "changed": changed,
            "next": left,
        })  # fmt: skip
    elif agreed:
        typer.echo(
            "Installed. Then, in this order:"
            if changed
            else "All of it is there already. Where not yet done:"
        )
        for step in left:
            typer.echo(as_typed(f"  `{step}`").replace("`", ""))
    else:
        typer.echo("Nothing was changed. To do it, run the same command with --yes.")
    if not agreed:
        raise typer.Exit(_NOT_AGREED)
