"""What the commands about a running proxy show on narrow terminals, and what they refuse before they ask it."""

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gpupool.cli.main import app
from gpupool.cli.recompute_top import screen
from gpupool.core.errors import InvalidInputError

NODE = {
    "name": "192.168.100.107:11989",
    "state": "quarantined",
    "slow": False,
    "kinds": ["frames", "http"],
    "in_flight": 12,
    "limit": 48,
    "requests_per_second": 1234.5,
    "share": 0.5,
    "p50_ms": 123.4,
    "p99_ms": 4567.8,
    "failed": 9876,
    "why": "it answered wrong: the line points differ",
}
CLIENT = {
    "address": "192.168.100.21",
    "requests_per_second": 0.5,
    "requests": 99,
    "failed": 0,
    "mean_ms": 12.5,
    "connections": 1,
    "silent": True,
}
FOUND = {
    "proxy": {
        "state": "ready", "uptime_seconds": 61, "requests_per_second": 1.0, "under_way": 1, "waiting": 0,
        "connections": 1, "requests": 9, "failed": 0,
    },
    "nodes": [NODE],
    "clients": [CLIENT],
    "clients_known": 1,
    "clients_silent": 1,
    "alerts": [],
}  # fmt: skip


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_top_cuts_nothing_off_whatever_the_width(width: int) -> None:
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(screen(FOUND, 11989, width))
    shown = capture.get()
    assert "\u2026" not in shown
    assert max(map(len, shown.splitlines())) <= width
    words = " ".join(shown.lower().split())
    for value in ("192.168.100.107:11989", "quarantined", "4567.8", "9876", "p99 ms", "connections"):
        assert value in words
    assert "it answered wrong: the line points differ" in words


def test_a_proxy_without_nodes_and_clients_is_shown() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(screen({**FOUND, "nodes": [], "clients": []}, 11989, 80))
    assert "FAILED" in capture.get()


@pytest.mark.parametrize("weight", ["-1", "-0.5"])
def test_a_negative_weight_is_refused_in_words(weight: str) -> None:
    result = CliRunner().invoke(app, ["recompute", "nodes", "weight", "192.168.1.7", weight, "-p", "1"])
    assert isinstance(result.exception, InvalidInputError)
    assert f"The weight is {weight}" in result.exception.message
    assert "drain" in result.exception.remedy


def test_other_options_of_weight_are_still_options() -> None:
    result = CliRunner().invoke(app, ["recompute", "nodes", "weight", "h", "--sockets", "-1"])
    assert result.exit_code == 2
    assert "--sockets" in result.output
