"""``gpupool recompute clients``: which harvesters have called a running proxy, when, and who went silent."""

import socket
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from gpupool.cli.output import JsonFlag, age, print_plain_json, print_table
from gpupool.cli.recompute_nodes import HistoryOption, PortOption, client_of, show_history

_NAME_SECONDS: Final = 5.0
_AT_ONCE: Final = 16


def clients(
    port: PortOption = None,
    silent: Annotated[
        bool, typer.Option("--silent", help="Only those that asked regularly and do not any more.")
    ] = False,
    names: Annotated[
        bool, typer.Option("--names", help="Ask the name server for their names (5 s at most).")
    ] = False,
    history: HistoryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the clients of a running proxy: first and last request, failures, protocol, and who went silent.

    Silent is who asked in five different minutes or more and has now not asked for ten times its usual pause, at
    least for the proxy's --silent-after (300 s). Exit code 5 with --silent where there are any, else 0.

    Examples:

      gpupool recompute clients

      gpupool recompute clients --silent && echo "all harvesters are heard"

      gpupool recompute clients --history 192.168.1.21
    """
    client = client_of(port)
    if history is not None:
        show_history(client.get("/v1/clients/history", name=history), as_json=as_json)
        return
    found = client.get("/v1/clients")
    rows = [row for row in found["clients"] if row["silent"] or not silent]
    if names:
        known = names_of(row["address"] for row in rows)
        rows = [row | {"name": known.get(row["address"])} for row in rows]
    if as_json:
        print_plain_json({**found, "clients": rows})
    else:
        _print(rows, names=names, silent=silent)
        if found["forgotten"]:
            typer.echo(f"{found['forgotten']} more were forgotten: too many addresses to remember.")
    if silent and rows:
        raise typer.Exit(5)


def _print(rows: list[dict[str, Any]], *, names: bool, silent: bool) -> None:
    shims = any(row.get("shim") for row in rows)
    table = [
        (
            row["address"],
            *([row["name"]] if names else []),
            "SILENT" if row["silent"] else "heard",
            _ago(row["last"]),
            _ago(row["first"]),
            row["requests"],
            row["failed"],
            row["refused"] or None,
            row["mean_ms"],
            " ".join(row["protocols"]),
            f"{row['silent_after_seconds']:.0f}s",
            *(_shim(row.get("shim")) if shims else []),
        )
        for row in rows
    ]
    columns = ("CLIENT", *(["NAME"] if names else []), "STATE", "LAST", "FIRST", "REQUESTS", "FAILED")
    more = (
        "REFUSED",
        "MEAN MS",
        "PROTOCOL",
        "SILENT AFTER",
        *(["LOST AT THE HARVESTER", "FALL-BACKS"] if shims else []),
    )
    empty = "none is silent." if silent else "none has asked yet."
    print_table("Clients", (*columns, *more), table, empty)


def _shim(row: dict[str, Any] | None) -> tuple[object, object]:
    """Return what a stock harvester with our library has lost, and what its bundled library answered instead."""
    if row is None:
        return None, None
    lost = row["qualities"] + row["proofs"]
    return f"{lost} (last: {row['why']})" if lost else 0, row["fallbacks"]


def _ago(moment: float) -> str:
    return age(datetime.fromtimestamp(moment, UTC))


def names_of(addresses: Iterable[str]) -> dict[str, str]:
    """Return address -> name as far as the name server tells them within five seconds."""
    waiting, found = list(addresses), {}
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                address = waiting.pop(0)
            try:
                found[address] = socket.gethostbyaddr(address)[0]
            except OSError:
                continue  # it has no name

    # Threads that nobody waits for: the resolver can't be told how long it may take.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(_AT_ONCE, len(waiting)))]
    limit = time.monotonic() + _NAME_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, limit - time.monotonic()))
    return dict(found)
