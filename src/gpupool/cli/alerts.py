"""``gpupool alerts``: what is wrong, who is told of it, and silence for a while."""

import asyncio
import getpass
import os
import socket
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag, age, print_json, print_table
from gpupool.cli.spans import seconds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpupool.contracts.alert_file import Target
    from gpupool.contracts.alerts import AlarmView, DeliveryView

app = typer.Typer(help="What is wrong, who is told of it, and silence for a while.", no_args_is_help=True)
_WRONG: Final = 5


@app.command("list")
def list_alerts(control: ControlOption = None, as_json: JsonFlag = False) -> None:
    """List what is wrong, who is told, and how the latest messages went. Exit code 5 where something is wrong.

    Example: `gpupool alerts list --json`
    """
    with connect(control) as client:
        found = client.alerts()
    if as_json:
        print_json(found)
    else:
        _print_alarms(found.alarms)
        targets = [(it.name, it.kind, it.least.value, it.waiting) for it in found.targets]
        print_table("Told", ("TARGET", "HOW", "FROM", "WAITING"), targets, "nobody.")
        _print_deliveries(found.deliveries)
    if any(alarm.until is None for alarm in found.alarms):
        raise typer.Exit(_WRONG)


@app.command("test")
def send_test(
    to: Annotated[str | None, typer.Option(metavar="NAME", help="Only to this target.")] = None,
    here: Annotated[
        bool,
        typer.Option(
            "--here", help="By alerts.yaml of this machine, without control: for a node, or a new file."
        ),
    ] = False,
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Send a test message now, and tell how it went. Exit code 1 when a target did not take it.

    Examples: `gpupool alerts test` · `gpupool alerts test --to ops --here`
    """
    if here:
        done: Sequence[DeliveryView] = _test_here(to)
    else:
        with connect(control) as client:
            done = client.test_alerts(to)
    if as_json:
        print_json(done)
    else:
        _print_deliveries(done)
    if any(one.outcome != "taken" for one in done):
        raise typer.Exit(1)


@app.command("silence")
def silence(
    pattern: Annotated[
        str, typer.Argument(help="A name, an id, a rule, or RULE/NAME; * and ? as in file names, in quotes.")
    ],
    span: Annotated[str, typer.Option("--for", metavar="TIME", help="How long: 90s, 30m, 2h, 3d, 1w.")],
    why: Annotated[str, typer.Option(help="Why; shown to everybody.")],
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Tell nothing of some alarms for a while; what was told before is still told as over.

    Example: `gpupool alerts silence 'gpu-0*' --for 2h --why 'new racks'`
    """
    seconds, by = seconds_of(span), f"{getpass.getuser()}@{socket.gethostname()}"
    with connect(control) as client:
        made = client.silence(pattern, seconds, why, by)
    if as_json:
        print_json(made)
    else:
        typer.echo(
            f"Silenced until {made.until:%Y-%m-%d %H:%M} UTC ({made.id}); it covers {made.covers} alarms now."
        )


@app.command("silences")
def list_silences(control: ControlOption = None, as_json: JsonFlag = False) -> None:
    """List the silences in force.

    Example: `gpupool alerts silences`
    """
    with connect(control) as client:
        found = client.silences()
    if as_json:
        print_json(found)
    else:
        rows = [(it.id, it.pattern, f"{it.until:%Y-%m-%d %H:%M}", it.by, it.covers, it.why) for it in found]
        print_table(
            "Silences", ("ID", "PATTERN", "UNTIL (UTC)", "BY", "COVERS", "WHY"), rows, "none.", below={"WHY"}
        )


@app.command("unsilence")
def unsilence(
    silence_id: Annotated[
        str, typer.Argument(metavar="ID", help="Of the silence, as `gpupool alerts silences` shows it.")
    ],
    control: ControlOption = None,
) -> None:
    """End a silence now; what it covers and still lasts is told.

    Example: `gpupool alerts unsilence sil-01jdx4q0v9m3s8k2c6w7y5t1ra`
    """
    with connect(control) as client:
        client.unsilence(silence_id)
    typer.echo(f"{silence_id} is over.")


def _print_alarms(alarms: "Sequence[AlarmView]") -> None:
    rows = [
        (
            alarm.title,
            alarm.label,
            alarm.severity.value,
            age(alarm.since),
            "over"
            if alarm.until
            else "silenced"
            if alarm.silenced_by
            else "told"
            if alarm.told_at
            else "not yet told",
            alarm.why,
        )
        for alarm in alarms
    ]
    columns = ("ALARM", "OF", "SEVERITY", "SINCE", "STATE", "WHY")
    print_table("Alarms", columns, rows, "nothing is wrong.", below={"WHY"})


def _print_deliveries(deliveries: "Sequence[DeliveryView]") -> None:
    rows = [
        (f"{it.at:%Y-%m-%d %H:%M:%S}", it.target, it.outcome.replace("_", " "), f"{it.seconds:g}s", it.why)
        for it in deliveries
    ]
    print_table(
        "Messages", ("TIME (UTC)", "TARGET", "RESULT", "TOOK", "WHY"), rows, "none yet.", below={"WHY"}
    )


def _test_here(to: str | None) -> "list[DeliveryView]":
    from pydantic import SecretStr

    from gpupool.contracts.alert_file import load_alert_file
    from gpupool.core.errors import NotFoundError
    from gpupool.core.home import Home

    home = Home.from_environment()
    urls = SecretStr(os.environ.get("GPUPOOL_ALERT_URLS", ""))
    targets = [target for target in load_alert_file(home, urls).targets if to in {None, target.name}]
    if not targets:
        raise NotFoundError(
            f"{home.alerts} names {'nobody' if to is None else f'no target {to!r}'}.",
            remedy="See docs/how-to/alerts.md for what it may say; GPUPOOL_HOME names the folder.",
        )
    return asyncio.run(_send_here(targets))


async def _send_here(targets: "list[Target]") -> "list[DeliveryView]":
    from dataclasses import asdict

    from gpupool.contracts.alerts import DeliveryView
    from gpupool.notify.courier import Courier
    from gpupool.notify.opening import open_notifier
    from gpupool.notify.port import trial_note

    note = trial_note(socket.gethostname())
    couriers = [Courier(target.name, open_notifier(**target.way()), lambda done: None) for target in targets]
    done = await asyncio.gather(*(courier.try_now(note) for courier in couriers))
    return [DeliveryView.model_validate(asdict(one)) for one in done]
