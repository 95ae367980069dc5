"""Alarms by a clock that the test turns: when they are raised, over, told, told again; and what a flapping thing does."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_samples import NOON, a_silence, an_alarm, later
from gpupool.control.alerts.alarms import LONGEST_GAP, Alarms
from gpupool.control.alerts.rules import NODE_SILENT, RULES, Trouble, Troubles
from gpupool.control.alerts.telling import Notice, Pace, Phase, notices, unheard
from gpupool.control.alerts.wording import note_of, span
from gpupool.core.clock import FakeClock
from gpupool.fleet.alarms import Alarm, Key, Severity

KEY: Key = (NODE_SILENT, "node-1")
WRONG: Troubles = {KEY: Trouble("gpu-1", "not heard")}
RISE, FALL = RULES[NODE_SILENT].rise, RULES[NODE_SILENT].fall
NEVER = timedelta()


class World:
    """Alarms and a clock."""

    def __init__(self, *known: Alarm) -> None:
        self.clock = FakeClock(NOON)
        self.alarms = Alarms(known)

    def look(self, found: Troubles, seconds: float = 0.0, *, raising: bool = True) -> list[Alarm]:
        """Look in steps, as the desk does, for so long; return everything that changed."""
        changed = []
        for step in [2.0] * int(seconds // 2) + [seconds % 2]:
            self.clock.advance(step)
            changed += self.alarms.look(found, self.clock.monotonic(), self.clock.now(), raising=raising)
        return changed


def test_a_trouble_is_raised_once_it_has_lasted_and_over_once_it_has_stayed_away() -> None:
    world = World()
    assert world.look(WRONG, RISE - 2) == []
    (raised,) = world.look(WRONG, 4)
    assert (raised.label, raised.severity, raised.since, raised.until) == (
        "gpu-1",
        Severity.CRITICAL,
        later(2),
        None,
    )
    assert world.look(WRONG, 600) == []
    assert world.look({}, FALL - 2) == []
    assert world.look(WRONG, 2) == []
    (over,) = world.look({}, FALL + 4)
    assert over == replace(raised, until=over.until)
    assert world.look({}, 600) == []


def test_what_goes_away_in_time_is_nobodys_business() -> None:
    world = World()
    for _ in range(10):
        assert world.look(WRONG, RISE - 4) == []
        assert world.look({}, 2) == []


def test_nothing_new_counts_while_nothing_may_be_raised() -> None:
    world = World()
    assert world.look(WRONG, 600, raising=False) == []
    assert world.look(WRONG, RISE - 2) == []
    assert world.look(WRONG, 4) != []


def test_a_restart_takes_up_alarms_without_raising_them_anew() -> None:
    told = an_alarm(rule=NODE_SILENT, subject="node-1", told_at=later(1))
    world = World(told)
    assert world.look(WRONG, 600, raising=False) == []
    assert list(world.alarms) == [told]
    (over,) = world.look({}, FALL + 4, raising=False)
    assert over.told_at == later(1)


def test_what_is_not_judged_stays_as_it_is() -> None:
    world = World(an_alarm(rule=NODE_SILENT))
    world.clock.advance(1)
    for _ in range(100):
        world.clock.advance(2)
        assert world.alarms.look({}, world.clock.monotonic(), NOON, judged=lambda key: False) == []


def test_a_process_that_slept_has_seen_nothing_last() -> None:
    world = World()
    world.look(WRONG, 4)
    world.clock.advance(3600)
    assert world.alarms.look(WRONG, world.clock.monotonic(), world.clock.now()) == []
    assert min(rule.rise for rule in RULES.values() if rule.rise > 10) > LONGEST_GAP
    assert world.look(WRONG, RISE) != []


def test_a_rule_may_be_told_to_wait_longer() -> None:
    clock = FakeClock(NOON)
    alarms = Alarms(rises={NODE_SILENT: 0.0})
    assert alarms.look(WRONG, clock.monotonic(), clock.now()) != []


def test_what_is_back_before_its_end_was_told_goes_on_as_the_same() -> None:
    world = World(an_alarm(rule=NODE_SILENT, subject="node-1", told_at=later(1), until=later(2)))
    (again,) = world.look(WRONG, RISE + 2)
    assert (again.told_at, again.until) == (later(1), None)
    assert notices(world.alarms, [], NOON, NEVER) == []


def test_what_is_back_while_its_end_is_being_told_is_told_anew() -> None:
    world = World(an_alarm(rule=NODE_SILENT, subject="node-1", told_at=later(1), until=later(2)))
    world.look(WRONG, RISE + 2)
    world.alarms.told_over(KEY)
    assert [notice.phase for notice in notices(world.alarms, [], NOON, NEVER)] == [Phase.NEW]
    world.alarms.told_over(("gpu_lost", "unknown"))
    world.alarms.told(("gpu_lost", "unknown"), NOON)


def test_an_alarm_that_lasts_is_told_again_and_again_in_its_time() -> None:
    alarm = an_alarm(told_at=NOON)
    repeat = timedelta(seconds=60)
    assert notices([alarm], [], later(59), repeat) == []
    assert notices([alarm], [], later(60), repeat) == [Notice(alarm, Phase.AGAIN)]
    assert notices([alarm], [], later(10_000), NEVER) == []
    assert notices([alarm], [], later(60), repeat, under_way={alarm.key}) == []


@pytest.mark.parametrize("pattern", ["gpu-1", "gpu-*", "node-1", "node_silent", "node_silent/gpu-?", "*"])
def test_a_silence_fits_names_ids_and_rules(pattern: str) -> None:
    silence = a_silence(pattern=pattern)
    assert silence.covers(an_alarm(), NOON)
    assert not silence.covers(an_alarm(), silence.until)
    assert (
        not silence.covers(an_alarm(rule="gpu_lost", subject="GPU-7", label="other"), NOON) or pattern == "*"
    )


def test_in_silence_nothing_begins_but_what_was_told_ends_aloud() -> None:
    silences = [a_silence(pattern="*")]
    begun, known = an_alarm(), an_alarm(subject="node-2", told_at=NOON)
    assert notices([begun, known], silences, later(1), timedelta(seconds=1)) == []
    ended = [replace(begun, until=later(2)), replace(known, until=later(2))]
    assert notices(ended, silences, later(3), NEVER) == [Notice(ended[1], Phase.OVER)]
    assert unheard(ended, silences, later(3)) == [begun.key]
    assert unheard(ended, [], later(3)) == []


def test_messages_wait_for_others_keep_their_distance_and_back_off() -> None:
    pace = Pace(10, 60)
    assert not pace.ready(0, waiting=True)
    assert not pace.ready(9, waiting=True)
    assert pace.ready(10, waiting=True)
    assert not pace.ready(40, waiting=True)
    assert not pace.ready(45, waiting=False)
    assert not pace.ready(65, waiting=True)
    assert pace.ready(75, waiting=True)
    for failures, pause in enumerate((60, 120, 240, 480, 900, 900), 1):
        now = failures * 10_000.0
        pace.went(now, taken=False)
        assert not pace.ready(now, waiting=True)
        assert not pace.ready(now + pause - 1, waiting=True)
        assert pace.ready(now + pause, waiting=True)
    pace.went(100_000, taken=True)
    assert not pace.ready(100_000, waiting=True)
    assert pace.ready(100_010, waiting=True)


def test_many_of_a_kind_are_one_line() -> None:
    nodes = [an_alarm(subject=f"node-{n}", label=f"gpu-{n}", since=later(n)) for n in range(40)]
    chute = an_alarm(rule="chute_down", label="chat", why="1 wanted, no instance serves")
    told = [Notice(alarm, Phase.NEW) for alarm in (*nodes, chute)]
    note = note_of(told, "here")
    assert note.title == "gpupool here: alarms: 41 new"
    assert note.text.splitlines() == [
        "[critical] chute down: chat (1 wanted, no instance serves)",
        "[critical] node silent (40): " + ", ".join(f"gpu-{n}" for n in range(10)) + " and 30 more",
    ]
    assert note.tone == "failure"
    assert len(note.facts["events"]) == 41


def test_an_end_says_how_long_it_was() -> None:
    over = an_alarm(until=later(300), told_at=NOON)
    note = note_of([Notice(over, Phase.OVER)], "here")
    assert (note.title, note.text, note.tone) == (
        "gpupool here: over: node silent: gpu-1",
        "over: node silent: gpu-1 (after 5 min)",
        "success",
    )
    missed = note_of([Notice(replace(over, told_at=None), Phase.OVER)], "here")
    assert missed.text.endswith("its beginning could not be told)")
    again = note_of([Notice(an_alarm(), Phase.AGAIN)], "here")
    assert again.text.startswith("[critical] still: node silent: gpu-1 (since 2026-")
    assert [span(seconds) for seconds in (-3, 119, 120, 7200, 172_800)] == [
        "0 s",
        "119 s",
        "2 min",
        "2 h",
        "2 d",
    ]


STEPS = st.lists(
    st.tuples(st.booleans(), st.floats(0.5, 40), st.sampled_from(["taken", "failed", "slow"]), st.booleans()),
    max_size=120,
)


@given(STEPS)
def test_however_it_flaps_nobody_hears_of_two_alarms_without_an_end_between(
    steps: list[tuple[bool, float, str, bool]],
) -> None:
    """Messages may get lost or be slow, and control may restart at any moment."""
    world = World()
    heard: list[Phase] = []
    slow: Notice | None = None
    for wrong, seconds, fate, restart in steps:
        world.clock.advance(seconds)
        world.alarms.look(WRONG if wrong else {}, world.clock.monotonic(), world.clock.now())
        if slow is not None:
            note_told(world, slow)
            slow = None
        due = notices(world.alarms, [], world.clock.now(), timedelta(seconds=50))
        for notice in due:
            if fate == "failed":
                continue
            heard.append(notice.phase)
            if fate == "slow" and not restart:
                slow = notice
            else:
                note_told(world, notice)
        if restart:
            world.alarms = Alarms(world.alarms)
    expected = Phase.NEW
    for phase in heard:
        if phase is Phase.NEW:
            assert expected is Phase.NEW
            expected = Phase.OVER
        elif phase is Phase.OVER:
            expected = Phase.NEW
        else:
            assert expected is Phase.OVER


def note_told(world: World, notice: Notice) -> None:
    if notice.phase is Phase.OVER:
        world.alarms.told_over(notice.alarm.key)
    else:
        world.alarms.told(notice.alarm.key, world.clock.now())
