"""``gpupool chute``: deploy, look at and delete the apps that the pool serves."""

from pathlib import Path
from typing import Annotated

import typer

from gpupool.cli.completing import chute_names
from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag
from gpupool.cli.purging import purge
from gpupool.cli.watching import WatchFlag
from gpupool.fleet.workloads import WorkloadKind

app = typer.Typer(help="The apps (chutes) that the pool serves.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The workload's name.", autocompletion=chute_names)]
app.command()(purge)


@app.command()
def deploy(
    file: Annotated[Path, typer.Argument(help="A workload spec in YAML; - reads standard input.")],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until it is active.")] = True,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait.")] = 600.0,
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Deploy a chute, or change the one of that name.

    Exit code 5 when it fails, or when no node of the pool can ever take it; it stays wanted until it is deleted.

    Examples: `gpupool chute deploy my-app.yaml` · `gpupool chute deploy --no-wait - < my-app.yaml`
    """
    from gpupool.cli.deploying import failed_ids, read_spec, stays, wait_active
    from gpupool.cli.invocation import as_typed
    from gpupool.cli.output import print_json

    spec = read_spec(file)
    with connect(control) as client:
        reply = client.deploy(spec)
        verb = "created" if reply.created else "changed" if reply.changed else "unchanged"
        typer.echo(f"{spec.name}: {verb}, version {reply.workload.version}", err=as_json)
        view = reply.workload
        if wait:
            try:
                view = wait_active(client, spec.name, timeout, _tell, failed_ids(reply.workload))
            except KeyboardInterrupt as stopped:
                _tell(as_typed(f"{stays(spec.name)}."))
                raise typer.Exit(130) from stopped
    if as_json:
        print_json(view)
    elif wait:
        typer.echo(f"{spec.name}: active, {view.active} of {view.wanted}")


def _tell(news: str) -> None:
    typer.echo(news, err=True)


@app.command("list")
def list_chutes(
    kind: Annotated[WorkloadKind | None, typer.Option(help="Only chutes, or only recompute servers.")] = None,
    lacking: Annotated[
        bool, typer.Option("--lacking", help="Only those with fewer active deployments than wanted.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="Only those that serve this model.")] = None,
    watch: WatchFlag = False,
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the workloads: chutes and recompute servers.

    Examples: `gpupool chute list` · `gpupool chute list --lacking --watch`
    """
    from gpupool.cli.output import print_json
    from gpupool.cli.overview import print_workloads
    from gpupool.cli.watching import shown_or_watched

    with connect(control) as client:

        def show() -> None:
            found = [
                workload
                for workload in client.workloads()
                if kind in {None, workload.spec.kind}
                and (model is None or model in workload.spec.models)
                and not (lacking and workload.active >= workload.wanted)
            ]
            if as_json:
                print_json(found)
            elif found or not (kind or model or lacking):
                print_workloads(found)
            else:
                typer.echo("Workloads: none like this")

        shown_or_watched(client, show, watch=watch)


@app.command()
def show(name: Name, control: ControlOption = None, as_json: JsonFlag = False) -> None:
    """Show one workload with its deployments, and why it is not as wanted.

    Example: `gpupool chute show demo-chat`
    """
    from gpupool.cli.output import print_json
    from gpupool.cli.overview import print_placements, print_workloads

    with connect(control) as client:
        workload = client.workload(name)
    if as_json:
        print_json(workload)
        return
    print_workloads([workload])
    print_placements(workload.placements)


@app.command()
def logs(
    name: Name,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=10_000, help="How many of the last lines.")
    ] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")
    ] = False,
    control: ControlOption = None,
) -> None:
    """Print the last output of a chute: of its live deployment, else of the latest one.

    Examples: `gpupool chute logs demo-chat -n 20` · `gpupool chute logs demo-chat --follow`
    """
    from gpupool.cli.following import follow_output, latest_output

    with connect(control) as client:
        output = latest_output(client, name, lines)
        typer.echo(output, nl=False)
        if follow:
            follow_output(client, name, output)


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    control: ControlOption = None,
) -> None:
    """Delete a workload: its deployments end, its name is free again.

    Example: `gpupool chute delete my-app --yes`
    """
    with connect(control) as client:
        workload = client.workload(name)
        if not yes:
            typer.confirm(f"Delete {name} with {workload.live} live deployment(s)?", abort=True)
        client.delete_workload(name)
    typer.echo(f"{name}: deleted; its deployments are ending")
