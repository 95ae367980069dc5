"""The gateway's settings: arguments before environment before defaults, and what is refused."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpupool.cli.gateway import app
from gpupool.core.errors import InvalidInputError
from gpupool.gateway.settings import GatewaySettings


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[GatewaySettings]:
    """The settings with which the command would have served."""
    found: list[GatewaySettings] = []
    monkeypatch.setattr("gpupool.gateway.main.run", found.append)
    return found


def serve(*arguments: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_defaults(taken: list[GatewaySettings], tmp_path: Path) -> None:
    serve("--home", str(tmp_path))
    (settings,) = taken
    assert (settings.gateway_host, settings.gateway_port) == ("127.0.0.1", 32080)
    assert settings.control_url == "http://127.0.0.1:32000"
    assert settings.gateway_require_key is None
    assert settings.feed_token_file == tmp_path / "keys" / "service.token"
    assert settings.key_file == tmp_path / "keys" / "gateway.token"


def test_arguments_win_over_the_environment(
    taken: list[GatewaySettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUPOOL_GATEWAY_PORT", "1111")
    monkeypatch.setenv("GPUPOOL_GATEWAY_HOST", "::1")
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path))
    monkeypatch.setenv("HOST", "not-ours")
    serve(
        "--port",
        "2222",
        "--control",
        "http://c:1",
        "--token-file",
        "t",
        "--require-key",
        "--log-level",
        "DEBUG",
    )
    (settings,) = taken
    assert (settings.gateway_host, settings.gateway_port) == ("::1", 2222)
    assert settings.control_url == "http://c:1"
    assert settings.feed_token_file == Path("t")
    assert settings.gateway_require_key is True
    assert (settings.home, settings.log_level) == (tmp_path, "DEBUG")


@pytest.mark.parametrize("arguments", [["--port", "70000"], ["--log-level", "LOUD"]])
def test_a_setting_out_of_range_is_named(taken: list[GatewaySettings], arguments: list[str]) -> None:
    with pytest.raises(InvalidInputError, match=r"gateway_port|log_level"):
        serve(*arguments)
    assert taken == []


@pytest.mark.parametrize(
    "url", ["", "nan", "/dev/null", "http://[::1", "http://a:99999999", "http://me:pw@a", "http://a?b"]
)
def test_an_address_of_control_that_is_none_is_refused_at_the_start(
    taken: list[GatewaySettings], url: str
) -> None:
    with pytest.raises(InvalidInputError, match="control_url"):
        serve("--control", url)
    assert not taken
