"""``gpupool recompute alerts``: what a running proxy is alarmed about, and whether its hooks work."""

import typer

from gpupool.cli.output import JsonFlag, print_plain_json, print_table
from gpupool.cli.recompute_nodes import PortOption, client_of

app = typer.Typer(help="Alerts of a running proxy, and a test of their hooks.", no_args_is_help=True)


@app.command("list")
def list_alerts(port: PortOption = None, as_json: JsonFlag = False) -> None:
    """List what is wrong now, the hooks, and the last deliveries. Exit code 5 where something is wrong.

    Example: gpupool recompute alerts list --port 11989
    """
    found = client_of(port).get("/v1/alerts")
    if as_json:
        print_plain_json(found)
    else:
        rows = [(row["alert"], row["subject"], row["since"], row["why"]) for row in found["firing"]]
        print_table("Alerts", ("ALERT", "SUBJECT", "SINCE", "WHY"), rows, "nothing is wrong.", below={"WHY"})
        hooks = ", ".join(found["hooks"]) or "none; see --alert-command and --alert-url of the proxy"
        typer.echo(f"Hooks: {hooks}")
        _print_deliveries(found["deliveries"])
    if found["firing"]:
        raise typer.Exit(5)


@app.command("test")
def send_test(port: PortOption = None, as_json: JsonFlag = False) -> None:
    """Send every alert hook of the proxy a test message now, and tell how it went.

    Exit code 0 when all took it, 1 when one did not, 5 when the proxy has no hook.

    Example: gpupool recompute alerts test
    """
    found = client_of(port).post("/v1/alerts/test")
    if as_json:
        print_plain_json(found)
    else:
        _print_deliveries(found["deliveries"])
    if not all(row["ok"] for row in found["deliveries"]):
        raise typer.Exit(1)


def _print_deliveries(deliveries: list[dict[str, object]]) -> None:
    rows = [
        (row["time"], row["hook"], "taken" if row["ok"] else "NOT TAKEN", f"{row['seconds']}s", row["why"])
        for row in deliveries
    ]
    print_table("Deliveries", ("TIME", "HOOK", "RESULT", "TOOK", "WHY"), rows, "none yet.", below={"WHY"})
