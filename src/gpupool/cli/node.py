"""``gpupool node``: the machines of the pool, from the day they are added to the day they are removed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpupool.cli.completing import node_names
from gpupool.cli.connect import ControlOption, connect
from gpupool.cli.output import JsonFlag
from gpupool.cli.watching import WatchFlag

if TYPE_CHECKING:
    from gpupool.contracts.control import NodeView
    from gpupool.contracts.control_client import ControlClient

app = typer.Typer(help="The machines of the pool.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The node's name.", autocompletion=node_names)]
Hourly = Annotated[float | None, typer.Option(min=0, help="What the machine costs an hour.")]
RegionOption = Annotated[str | None, typer.Option(help="Where it stands, such as de-fra.")]
Timeout = Annotated[float, typer.Option(min=1, help="With --wait: seconds to wait at most.")]


@app.command()
def add(
    name: Annotated[
        str | None, typer.Option(help="The node's name; left out, the machine brings its own.")
    ] = None,
    hourly_usd: Hourly = None,
    region: RegionOption = None,
    short_ref: Annotated[
        str | None, typer.Option(help="GPU model that it has, as in `gpupool gpu catalog`.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Where the gateway reaches it; left out, the machine's first own address."),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Add all nodes of a CSV or YAML file.")
    ] = None,
    join_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Control's address as the node reaches it; left out, as from here."),
    ] = None,
    uses: Annotated[int, typer.Option(min=1, max=1000, help="Machines that may join with the token.")] = 1,
    valid_hours: Annotated[
        float, typer.Option(min=0.01, max=720, help="Hours that the token is good for.")
    ] = 24.0,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until it is ready.")] = False,
    timeout: Timeout = 900.0,
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Add a machine: print the line to paste there. The token in it is shown once and good for one machine.

    A file has the columns name, hourly_usd, region, short_ref and address; all but the name may be left out. Exit code
    5 when a node of that name is there already, 9 when --wait has waited too long.

    Examples: `gpupool node add --name gpu-1 --hourly-usd 1.2 --region de-fra --wait` ·
    `gpupool node add --from nodes.csv`
    """
    from gpupool.cli.node_list_file import read_nodes
    from gpupool.core.errors import InvalidInputError

    given = {"hourly_usd": hourly_usd, "region": region, "short_ref": short_ref, "address": address}
    given |= {"uses": uses, "valid_hours": valid_hours}
    if from_file is not None and name is not None:
        raise InvalidInputError("Give either --name or --from, not both.")
    if wait and name is None and from_file is None:
        raise InvalidInputError("--wait needs to know whom to wait for.", remedy="Give --name or --from.")
    wishes = [{"name": name, **given}]
    if from_file is not None:
        wishes = [{**given, **entry.model_dump(exclude_unset=True)} for entry in read_nodes(from_file)]
    with connect(control) as client:
        url = (join_url or client.url).rstrip("/")
        one = from_file is None
        _add(client, wishes, url=url, as_json=as_json, one=one, wait=timeout if wait else 0)


def _add(
    client: "ControlClient", wishes: list[dict[str, Any]], *, url: str, as_json: bool, one: bool, wait: float
) -> None:
    from gpupool.cli.node_adding import invite_all, print_invited, wait_ready
    from gpupool.cli.output import print_plain_json
    from gpupool.contracts.join_command import is_loopback
    from gpupool.core.errors import ConflictError

    results = invite_all(client, wishes, url, raise_refusals=one)
    if not as_json:
        print_invited(results, one=one, say=_tell)
    elif not wait:
        print_plain_json(results[0] if one else results)
    if is_loopback(url):
        _tell(f"{url} is an address of this machine only; give the one that nodes reach with --join-url.")
    if wait:
        names = [result["name"] for result in results if "command" in result]
        nodes = wait_ready(client, names, wait, _tell)
        if as_json:
            print_plain_json([node.model_dump(mode="json") for node in nodes])
    if any("refused" in result for result in results):
        raise typer.Exit(ConflictError.exit_code)


@app.command("list")
def list_nodes(
    state: Annotated[
        str | None,
        typer.Option(help="Only joining, verifying, ready, unreachable or removed ones."),
    ] = None,
    region: Annotated[str | None, typer.Option(help="Only of this region.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Only with a GPU of this model, such as a100.")] = None,
    watch: WatchFlag = False,
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the nodes; removed ones only with --state removed.

    Examples: `gpupool node list --state ready --gpu a100` · `gpupool node list --watch`
    """
    from gpupool.cli.output import print_json
    from gpupool.cli.overview import print_nodes
    from gpupool.cli.watching import shown_or_watched

    filtered = any(value is not None for value in (state, region, gpu))
    with connect(control) as client:

        def show() -> None:
            nodes = client.nodes(state=state, region=region, gpu=gpu)
            if as_json:
                print_json(nodes)
            else:
                print_nodes(nodes, "none like this" if filtered else "none; add one with `gpupool node add`")

        shown_or_watched(client, show, watch=watch)


@app.command("show")
def show_node(name: Name, control: ControlOption = None, as_json: JsonFlag = False) -> None:
    """Show one node with its devices and deployments, and what a drain of it waits for. A removed one by its id.

    Example: `gpupool node show gpu-1`
    """
    from gpupool.cli.node_draining import lines_of
    from gpupool.cli.output import print_plain_json
    from gpupool.cli.overview import print_devices, print_nodes, print_placements

    with connect(control) as client:
        node = client.node(name)
        devices = [device for device in client.devices() if device.node_id == node.id]
        placements = client.placements(node=node.id)
        drain = client.drain_state(node.id) if node.draining else None
    if as_json:
        told = node.model_dump(mode="json")
        told["devices"] = [device.model_dump(mode="json") for device in devices]
        told["placements"] = [placement.model_dump(mode="json") for placement in placements]
        told["drain"] = drain.model_dump(mode="json") if drain else None
        print_plain_json(told)
        return
    print_nodes([node])
    print_devices(devices)
    print_placements(placements)
    if drain is not None:
        for line in lines_of(drain):
            typer.echo(f"Draining: {line}")


@app.command()
def lock(name: Name, control: ControlOption = None, as_json: JsonFlag = False) -> None:
    """Let no new work come to a node; what runs there stays.

    Example: `gpupool node lock gpu-1`
    """
    with connect(control) as client:
        _print_done(client.lock_node(name, locked=True), "locked: no new work comes to it", as_json=as_json)


@app.command()
def unlock(name: Name, control: ControlOption = None, as_json: JsonFlag = False) -> None:
    """Let new work come to a locked node again.

    Example: `gpupool node unlock gpu-1`
    """
    with connect(control) as client:
        _print_done(client.lock_node(name, locked=False), "unlocked", as_json=as_json)


@app.command("set")
def set_node(
    name: Name,
    hourly_usd: Hourly = None,
    region: RegionOption = None,
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Note what a node costs and where it stands; what its agent says of its cost no longer counts then.

    Example: `gpupool node set gpu-1 --hourly-usd 1.15 --region de-fra`
    """
    from gpupool.cli.node_adding import checked
    from gpupool.contracts.nodes import NodeSettings
    from gpupool.core.errors import InvalidInputError

    given = {"hourly_usd": hourly_usd, "region": region}
    given = {key: value for key, value in given.items() if value is not None}
    if not given:
        raise InvalidInputError("There is nothing to set.", remedy="Give --hourly-usd, --region or both.")
    with connect(control) as client:
        node = client.set_node(name, checked(NodeSettings, given))
    cost = "unknown cost" if node.hourly_usd is None else f"{node.hourly_usd:g} USD an hour"
    _print_done(node, f"{cost}, region {node.region or 'not told'}", as_json=as_json)


@app.command()
def drain(
    name: Name,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until nothing is left there.")] = False,
    timeout: Timeout = 900.0,
    control: ControlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Move all work off a node: each deployment ends once its replacement elsewhere is active.

    What no other node takes stays and is named with the reason; it moves as soon as there is room. Exit code 9 when
    --wait has waited too long; the node goes on draining.

    Example: `gpupool node drain gpu-1 --wait --timeout 600`
    """
    from gpupool.cli.node_draining import lines_of, wait_drained
    from gpupool.cli.output import print_json

    with connect(control) as client:
        view = client.drain_node(name)
        if wait:
            view = wait_drained(client, name, timeout, _tell)
    if as_json:
        print_json(view)
        return
    if not view.left:
        typer.echo(f"{view.node}: drained; nothing runs there")
        return
    typer.echo(f"{view.node}: drains; {len(view.left)} deployment(s) to move")
    for line in lines_of(view):
        typer.echo(f"  {line}")


@app.command()
def undrain(name: Name, control: ControlOption = None, as_json: JsonFlag = False) -> None:
    """Let work stay on a node that drains, and come to it again.

    Example: `gpupool node undrain gpu-1`
    """
    with connect(control) as client:
        _print_done(client.undrain_node(name), "takes work again", as_json=as_json)


@app.command()
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; end what runs there.")] = False,
    control: ControlOption = None,
) -> None:
    """Remove a node for good, be it there or lost: its key is refused from now on, its history stays.

    Asks when work runs there. What runs is wanted still and placed elsewhere where another node takes it; draining
    first leaves no gap.

    Example: `gpupool node drain gpu-1 --wait && gpupool node remove gpu-1`
    """
    with connect(control) as client:
        node = client.node(name)
        if node.placements and not yes:
            running = sorted({p.workload for p in client.placements(node=node.id, live=True)})
            asked = f"{node.name} runs {', '.join(running)} ({node.placements} deployment(s)). Remove it and end them?"
            typer.confirm(asked, abort=True)
        client.remove_node(node.id, force=yes or node.placements > 0)
    typer.echo(f"{node.name}: removed; its history stays under {node.id}")


@app.command()
def tokens(control: ControlOption = None, as_json: JsonFlag = False) -> None:
    """List the join tokens that `node add` has made; the secret in them is shown nowhere again.

    Example: `gpupool node tokens`
    """
    from gpupool.cli.output import print_json, print_table

    with connect(control) as client:
        found = client.join_tokens()
    if as_json:
        print_json(found)
        return
    print_table(
        "Join tokens",
        ("ID", "NODE", "USED", "OF", "EXPIRES", "MADE BY", "STATE"),
        (
            (
                token.id,
                token.name or "any",
                token.used,
                token.uses,
                f"{token.expires_at:%Y-%m-%d %H:%M}",
                token.created_by,
                token.why_not or "good",
            )
            for token in found
        ),
        "none; `gpupool node add` makes one",
    )


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(help="Id of the join token, as `node tokens` shows it.")],
    control: ControlOption = None,
) -> None:
    """Let nobody join with a token any more; nodes that have joined with it stay.

    Example: `gpupool node revoke jt-01m8q9f3g77rkjy14j0pthmtc9`
    """
    with connect(control) as client:
        client.revoke_join_token(token)
    typer.echo(f"{token}: revoked")


def _print_done(node: "NodeView", what: str, *, as_json: bool) -> None:
    from gpupool.cli.output import print_json

    if as_json:
        print_json(node)
    else:
        typer.echo(f"{node.name}: {what}")


def _tell(news: str) -> None:
    from gpupool.cli.invocation import as_typed

    typer.echo(as_typed(news), err=True)
