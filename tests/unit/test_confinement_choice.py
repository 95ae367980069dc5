"""Which wall a machine offers, which users it gives away, and which paths its allow-list opens."""

import pwd
from pathlib import Path

import pytest

from gpupool.cli.checks.finding import Verdict
from gpupool.cli.checks.isolation import check_isolation, judge_isolation
from gpupool.runtimes.process import confinement
from gpupool.runtimes.process.code_paths import code_paths, without
from gpupool.runtimes.process.confinement import FIRST_UID, LAST_UID, Offer, Wall, draw_uid, look, own_users


def offer_of(monkeypatch: pytest.MonkeyPatch, landlock: int, user: int, capabilities: int) -> Offer:
    monkeypatch.setattr(confinement, "landlock_version", lambda: landlock)
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr(confinement, "_capabilities", lambda: capabilities)
    return look()


def test_the_highest_wall_that_can_be_built_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    every = (1 << 41) - 1
    assert offer_of(monkeypatch, 7, 0, every) == Offer(Wall.OWN_USER, "", scoped=True)
    assert offer_of(monkeypatch, 1, 0, every) == Offer(Wall.OWN_USER, "", scoped=False)
    assert offer_of(monkeypatch, 7, 1000, 0).wall is Wall.ALLOW_LIST
    in_a_container = offer_of(monkeypatch, 7, 0, every & ~(1 << 2))
    assert in_a_container.wall is Wall.ALLOW_LIST
    assert "DAC_READ_SEARCH" in in_a_container.why
    for user in (0, 1000):
        lowest = offer_of(monkeypatch, 0, user, every)
        assert lowest.wall is Wall.FOLDERS
        assert "Landlock" in lowest.why


def test_doctor_warns_of_a_wall_of_folders_only() -> None:
    warned = judge_isolation(Offer(Wall.FOLDERS, "no Landlock"))
    assert warned.verdict is Verdict.WARN
    assert "no Landlock" in (warned.why or "")
    assert judge_isolation(Offer(Wall.ALLOW_LIST, "not root")).verdict is Verdict.GOOD
    assert judge_isolation(Offer(Wall.OWN_USER, "")).verdict is Verdict.GOOD
    assert check_isolation() == judge_isolation(look())


def test_a_user_is_drawn_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "LAST_UID", FIRST_UID + 4)
    monkeypatch.setattr(confinement, "real_users", lambda: iter([(1, 0), (99, FIRST_UID + 1)]))

    def account(number: int) -> object:
        if number == FIRST_UID + 2:
            return object()
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", account)
    assert draw_uid({FIRST_UID + 3}) == FIRST_UID + 4
    with pytest.raises(LookupError, match="is free"):
        draw_uid({FIRST_UID + 3, FIRST_UID + 4})


def test_the_user_of_our_own_servers_is_no_placement_s_alone() -> None:
    assert own_users([None, 0, 1000, FIRST_UID, FIRST_UID + 1, LAST_UID, LAST_UID + 1]) == {
        FIRST_UID + 1,
        LAST_UID,
    }


def test_a_folder_around_the_state_folder_is_opened_without_it(tmp_path: Path) -> None:
    home = tmp_path / "opt" / "pool" / "state"
    for folder in ("opt/pool/state/keys", "opt/pool/code", "opt/other"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / "opt" / "link").symlink_to(home / "keys")
    (tmp_path / "opt" / "file").write_text("")
    opened = set(without(tmp_path / "opt", home))
    assert opened == {tmp_path / "opt" / name for name in ("pool/code", "other", "file")}
    assert list(without(home, home)) == []
    assert list(without(home / "keys", home)) == []
    assert list(without(tmp_path / "opt" / "link", home)) == []
    assert list(without(tmp_path / "opt" / "other", home)) == [tmp_path / "opt" / "other"]


def test_the_folder_that_python_was_started_in_is_no_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.path", ["", str(tmp_path), str(tmp_path / "site-packages")])
    (tmp_path / "site-packages").mkdir()
    code_paths.cache_clear()
    try:
        found = code_paths()
    finally:
        code_paths.cache_clear()
    assert tmp_path not in found
    assert tmp_path / "site-packages" in found
