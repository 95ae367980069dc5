"""What the command line says can be typed as it stands, and tells no more than is true."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpupool.cli import events as events_command
from gpupool.cli.following import fresh_part
from gpupool.cli.invocation import as_typed, own_command
from gpupool.cli.support_bundle import summary
from gpupool.cli.up.children import Child, last_words
from gpupool.cli.up.plan import UpPlan
from gpupool.cli.up.pool import Pool
from gpupool.cli.up.preflight import with_pool
from gpupool.cli.up.progress import Progress
from gpupool.cli.up.session import Session
from gpupool.contracts.control import EventView


@pytest.fixture
def fresh() -> Iterator[None]:
    own_command.cache_clear()
    yield
    own_command.cache_clear()


@pytest.mark.usefixtures("fresh")
class TestOwnCommand:
    def test_names_the_launcher_where_the_shell_would_not_find_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        launcher = self.launcher(tmp_path / "my pool", monkeypatch)
        monkeypatch.setenv("PATH", "/nowhere")
        assert as_typed("See `gpupool status`.") == f"See `'{launcher}' status`."

    def test_is_short_in_the_checkout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launcher(tmp_path, monkeypatch)
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.chdir(tmp_path)
        assert (
            as_typed("`gpupool chute list` or `gpupool up`") == "`bin/gpupool chute list` or `bin/gpupool up`"
        )

    def test_is_the_bare_name_where_the_shell_finds_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        launcher = self.launcher(tmp_path, monkeypatch)
        monkeypatch.setenv("PATH", str(launcher.parent))
        assert own_command() == "gpupool"

    def launcher(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        launcher = root / "bin" / "gpupool"
        launcher.parent.mkdir(parents=True)
        launcher.write_text("#!/bin/sh\n")
        launcher.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(launcher.parent / "python"))
        return launcher


class TestLastWords:
    def test_of_a_json_line_the_event_and_the_error(self) -> None:
        line = '{"level": "error", "event": "store lost", "error": "disk full", "pid": 3}'
        assert last_words(f"starting\n{line}\n") == "store lost: disk full"

    def test_of_an_error_of_ours_the_sentences(self) -> None:
        log = "x\nError [port_taken]: Port 5 is taken.\n  What to do: Free it.\n"
        assert last_words(log) == "Port 5 is taken. What to do: Free it."

    def test_other_lines_as_they_are(self) -> None:
        assert last_words("one\nTypeError: no\n") == "TypeError: no"
        assert last_words("[1, 2]") == "[1, 2]"
        assert last_words("\n") == "its log is empty"

    def test_a_signal_is_told_without_the_line_before_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = tmp_path / "gateway.log"
        child = Child("gateway", ["--version"], {}, log)
        monkeypatch.setattr(child, "_process", SimpleNamespace(poll=lambda: -9))
        log.write_text('{"event": "request"}\n')
        assert child.tend(0.0) == "gateway ended (SIGKILL) and starts again in 0.5 s"


class TestEvents:
    @pytest.fixture(autouse=True)
    def pool(self, monkeypatch: pytest.MonkeyPatch) -> None:
        all_events = [
            EventView(seq=n, kind="node.ready", subject="node-1", at=datetime.now(UTC), data={})
            for n in range(1, 11)
        ]

        def shown(after: int, limit: int, **_: float) -> list[EventView]:
            return [event for event in all_events if event.seq > after][:limit]

        @contextmanager
        def connected(_: str | None) -> Iterator[SimpleNamespace]:
            yield SimpleNamespace(pool=lambda: SimpleNamespace(last_event_seq=10), events=shown)

        monkeypatch.setattr(events_command, "connect", connected)

    def test_shows_the_newest_and_says_that_there_are_older_ones(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        events_command.events(limit=3)
        told = capsys.readouterr()
        assert [line.split()[0] for line in told.out.splitlines()] == ["8", "9", "10"]
        assert "7 older events" in told.err

    def test_after_a_number_it_says_that_there_are_newer_ones(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        events_command.events(after=2, limit=3)
        told = capsys.readouterr()
        assert [line.split()[0] for line in told.out.splitlines()] == ["3", "4", "5"]
        assert "Newer events may follow" in told.err
        assert "--after 5" in told.err

    def test_after_a_number_the_pool_is_not_asked_how_many_there_are(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        @contextmanager
        def connected(_: str | None) -> Iterator[SimpleNamespace]:
            yield SimpleNamespace(events=lambda **_: [])

        monkeypatch.setattr(events_command, "connect", connected)
        events_command.events(after=7)
        assert capsys.readouterr() == ("", "")

    def test_says_nothing_where_all_are_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        events_command.events()
        told = capsys.readouterr()
        assert len(told.out.splitlines()) == 10
        assert told.err == ""


def test_following_prints_what_is_new_and_all_of_another_text() -> None:
    assert fresh_part("one\n", "one\ntwo\n") == "two\n"
    assert fresh_part("one\ntwo\n", "one\ntwo\n") == ""
    assert fresh_part("x" * 1000 + "end\n", "x" * 600 + "end\nmore\n") == "more\n"
    assert fresh_part("old run\n", "new run\n") == "new run\n"
    assert fresh_part("", "first\n") == "first\n"


def test_a_bundle_is_summed_up_in_a_line() -> None:
    assert summary(["logs/b.log", "logs/a.log", "findings.json"]) == "findings.json, logs (2)"


class TestPortHolder:
    def test_of_a_pool_is_told_with_its_folder(self, tmp_path: Path) -> None:
        (tmp_path / "12").mkdir()
        (tmp_path / "12" / "environ").write_bytes(b"A=1\0GPUPOOL_UP_HOME=/srv/pool\0B=2\0")
        assert with_pool("pid 12 (python)", tmp_path) == "pid 12 (python) of the pool in /srv/pool"

    def test_of_anything_else_is_told_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "12").mkdir()
        (tmp_path / "12" / "environ").write_bytes(b"A=1\0")
        assert with_pool("pid 12 (nginx)", tmp_path) == "pid 12 (nginx)"
        assert with_pool("pid 13 (gone)", tmp_path) == "pid 13 (gone)"
        assert with_pool("another process", tmp_path) == "another process"


class TestUpTells:
    """What a start runs although it was not asked for, and what it deploys."""

    def session(self, *, demo: bool, said: list[str]) -> Session:
        plan = cast("UpPlan", SimpleNamespace(demo=demo, recompute_port=1))
        progress = cast("Progress", SimpleNamespace(say=said.append))
        return Session(plan, cast("Pool", None), progress)

    def client(self, *, created: bool = False) -> Any:
        wanted = [SimpleNamespace(name=name, wanted=1) for name in ("demo-chat", "hello", "recompute")]
        reply = SimpleNamespace(created=created, workload=SimpleNamespace(placements=[]))
        return SimpleNamespace(workloads=lambda: wanted, deploy=lambda _: reply)

    def test_without_the_demo_what_is_kept_is_named(self) -> None:
        said: list[str] = []
        self.session(demo=False, said=said).tell_kept(self.client())
        assert "still wanted from before: demo-chat, hello, recompute" in said[0]

    def test_with_the_demo_only_what_is_not_of_it(self) -> None:
        said: list[str] = []
        self.session(demo=True, said=said).tell_kept(self.client())
        assert "from before: hello (" in said[0]

    @pytest.mark.parametrize("created", [True, False])
    def test_what_was_deployed_anew_is_said(self, created: bool) -> None:
        said: list[str] = []
        self.session(demo=True, said=said).deploy(self.client(created=created))
        assert [line.partition(" (")[0] for line in said] == (
            ["deployed for the demo: demo-chat, recompute"] if created else []
        )
