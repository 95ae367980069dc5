"""``alerts.yaml``: what it may say, who may read it, and that no error repeats what stands in it."""

import os
import re
import warnings
from pathlib import Path

import apprise
import pytest
from pydantic import SecretStr

from gpupool.cli.spans import seconds_of
from gpupool.contracts.alert_file import MOST_TARGETS, load_alert_file
from gpupool.control.alerts.rules import RULES
from gpupool.control.alerts.set_up import desk_of
from gpupool.core.errors import EnvironmentProblemError, InvalidInputError
from gpupool.core.home import Home
from gpupool.fleet.alarms import Severity

SECRET = "SeCrEt42"


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "alerts.yaml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_without_a_file_nobody_is_told_but_the_log(tmp_path: Path) -> None:
    file = load_alert_file(Home(tmp_path))
    assert file.targets == []
    assert [name for name, _, _ in desk_of(file, tmp_path).targets] == ["log"]


def test_a_whole_file_is_understood(tmp_path: Path) -> None:
    written(
        tmp_path,
        """
        targets:
          - name: ops
            apprise: dingtalk://SeCrEt42@token
          - name: pager
            command: /bin/cat
            least: critical
          - name: hook
            url: https://example.org/SeCrEt42
        group_seconds: 5
        distance_seconds: 30
        repeat_hours: 0
        holds: {node_silent: 120}
        control_silent_minutes: 10
        """,
    )
    file = load_alert_file(Home(tmp_path), SecretStr("json://one  json://two"))
    assert SECRET not in repr(file)
    desk = desk_of(file, tmp_path)
    assert [(name, notifier.name, least) for name, notifier, least in desk.targets] == [
        ("ops", "apprise dingtalk", Severity.WARNING),
        ("pager", "command /bin/cat", Severity.CRITICAL),
        ("hook", "url https://example.org", Severity.WARNING),
        ("url-1", "apprise json", Severity.WARNING),
        ("url-2", "apprise json", Severity.WARNING),
    ]
    assert (desk.group_seconds, desk.distance_seconds, desk.repeat.total_seconds()) == (5, 30, 0)
    assert desk.rises == {"node_silent": 120}
    disk = desk.disk()
    assert disk is not None
    assert 0 < disk.free <= disk.total


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path, "targets: []", mode)
    with pytest.raises(EnvironmentProblemError, match="others than its owner") as caught:
        load_alert_file(Home(tmp_path))
    assert caught.value.remedy == f"Run `chmod 600 {path}`."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"targets: [{{name: ops, apprise: 'json://{SECRET}', url: 'https://{SECRET}'}}]", "exactly one of"),
        ("targets: [{name: ops}]", "exactly one of"),
        (f"targets: [{{name: ops, aprise: 'json://{SECRET}'}}]", "unknown field"),
        (f"targets: [{{name: ops, apprise: [{SECRET}]}}]", "targets.0.apprise"),
        (f"targets: [{{name: 'not a name {SECRET}', command: /x}}]", "targets.0.name"),
        ("targets: [{name: a, command: /x}, {name: a, command: /y}]", "the same name"),
        (str({"targets": [{"name": f"a{n}", "command": "/x"} for n in range(MOST_TARGETS + 1)]}), "at most"),
        (f"targets: [{{name: ops, apprise: 'json://{SECRET}]", "alerts.yaml"),
        (f"targets: &x [*x, {SECRET}]", "alerts.yaml"),
        (f"- {SECRET}", "alerts.yaml"),
        ("group_seconds: -1", "group_seconds"),
        ("control_silent_minutes: 0", "control_silent_minutes"),
    ],
)
def test_a_wrong_file_is_told_without_what_stands_in_it(tmp_path: Path, text: str, said: str) -> None:
    written(tmp_path, text)
    with pytest.raises(InvalidInputError) as caught:
        load_alert_file(Home(tmp_path))
    assert said in caught.value.message
    assert SECRET not in f"{caught.value.message}{caught.value.remedy}{caught.value.__cause__}"


def test_a_rule_that_is_none_is_refused_with_those_there_are(tmp_path: Path) -> None:
    written(tmp_path, "holds: {node_slient: 3}")
    with pytest.raises(InvalidInputError, match="node_slient") as caught:
        desk_of(load_alert_file(Home(tmp_path)), tmp_path)
    assert "node_silent" in caught.value.remedy


@pytest.mark.parametrize("kind", ["pipe", "folder", "bytes"])
def test_what_is_no_file_of_text_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "alerts.yaml"
    if kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "folder":
        path.mkdir(mode=0o700)
    else:
        written(tmp_path, "").write_bytes(b"\xff\xfe")
    with pytest.raises(EnvironmentProblemError):
        load_alert_file(Home(tmp_path))


def test_a_folder_that_is_gone_shows_no_disk(tmp_path: Path) -> None:
    assert desk_of(load_alert_file(Home(tmp_path)), tmp_path / "gone").disk() is None


@pytest.mark.parametrize(
    ("span", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("3D", 259_200), (" 1w ", 604_800)]
)
def test_spans_of_time(span: str, seconds: float) -> None:
    assert seconds_of(span) == seconds


@pytest.mark.parametrize("span", ["", "2", "h", "2 h", "-2h", "1.5h", "2y", "9999999s"])
def test_what_is_no_span_is_refused(span: str) -> None:
    with pytest.raises(InvalidInputError, match="no span of time"):
        seconds_of(span)


@pytest.mark.parametrize("page", ["how-to/alerts.md", "zh/how-to/alerts.md"])
def test_what_the_pages_show_is_understood_by_us_and_by_apprise(
    tmp_path: Path, checkout: Path, page: str
) -> None:
    shown = re.findall(
        r"^```yml\n(.*?)^```$", (checkout / "docs" / page).read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(shown) == 2
    for body in shown:
        written(tmp_path, body)
        file = load_alert_file(Home(tmp_path))
        desk_of(file.model_copy(update={"targets": [it for it in file.targets if not it.command]}), tmp_path)
        for target in file.targets:
            if target.apprise is not None:
                assert understood(target.apprise.get_secret_value()), target.name


def understood(address: str) -> bool:
    with warnings.catch_warnings():
        # Apprise loads its services one by one, and some of them use what Python means to drop.
        warnings.simplefilter("ignore", DeprecationWarning)
        return apprise.Apprise.instantiate(address) is not None


@pytest.mark.parametrize("page", ["how-to/alerts.md", "zh/how-to/alerts.md"])
def test_the_pages_name_every_rule(checkout: Path, page: str) -> None:
    text = (checkout / "docs" / page).read_text()
    assert [name for name in RULES if f"`{name}`" not in text] == []
