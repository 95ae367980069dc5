"""Notices as a message: equal troubles in one paragraph, the worst first, few names spelled out and the rest counted."""

from collections.abc import Sequence
from typing import Any, Final

from gpupool.control.alerts.rules import RULES
from gpupool.control.alerts.telling import Notice, Phase
from gpupool.core.ids import new_id
from gpupool.fleet.alarms import Alarm, Severity
from gpupool.notify.port import Note

_SPELLED_OUT: Final = 3
"""So many of a kind are told with their reasons."""
_MOST_NAMES: Final = 10
_MOST_EVENTS: Final = 200
_HEADS: Final = {Phase.NEW: "", Phase.AGAIN: "still: ", Phase.OVER: "over: "}


def note_of(notices: Sequence[Notice], where: str) -> Note:
    """Return the message that tells ``notices`` (at least one); ``where`` names the pool."""
    new = [notice for notice in notices if notice.phase is not Phase.OVER]
    critical = any(notice.alarm.severity is Severity.CRITICAL for notice in new)
    paragraphs = [_paragraph(phase, rule, alarms) for (phase, rule), alarms in _groups(notices)]
    return Note(
        title=f"gpupool {where}: {_title(notices)}",
        text="\n".join(paragraphs),
        tone="failure" if critical else "warning" if new else "success",
        facts={
            "version": 1,
            "id": new_id("ev"),
            "test": False,
            "pool": where,
            "events": [_fact(notice) for notice in notices[:_MOST_EVENTS]],
            "more_events": max(0, len(notices) - _MOST_EVENTS),
        },
    )


def _title(notices: Sequence[Notice]) -> str:
    if len(notices) == 1:
        (notice,) = notices
        return f"{_HEADS[notice.phase]}{RULES[notice.alarm.rule].title}: {notice.alarm.label}"
    counts = {phase: sum(notice.phase is phase for notice in notices) for phase in Phase}
    words = {Phase.NEW: "new", Phase.AGAIN: "lasting", Phase.OVER: "over"}
    return "alarms: " + ", ".join(f"{count} {words[phase]}" for phase, count in counts.items() if count)


def _groups(notices: Sequence[Notice]) -> list[tuple[tuple[Phase, str], list[Alarm]]]:
    groups: dict[tuple[Phase, str], list[Alarm]] = {}
    for notice in notices:
        groups.setdefault((notice.phase, notice.alarm.rule), []).append(notice.alarm)
    phases = list(Phase)
    return sorted(
        groups.items(),
        key=lambda group: (
            phases.index(group[0][0]),
            RULES[group[0][1]].severity is not Severity.CRITICAL,
            group[0][1],
        ),
    )


def _paragraph(phase: Phase, rule: str, alarms: Sequence[Alarm]) -> str:
    head = f"{_HEADS[phase]}{RULES[rule].title}"
    if phase is not Phase.OVER:
        head = f"[{RULES[rule].severity.value}] {head}"
    if len(alarms) <= _SPELLED_OUT:
        return "\n".join(f"{head}: {alarm.label} ({_detail(phase, alarm)})" for alarm in alarms)
    names = ", ".join(alarm.label for alarm in alarms[:_MOST_NAMES])
    more = f" and {len(alarms) - _MOST_NAMES} more" if len(alarms) > _MOST_NAMES else ""
    return f"{head} ({len(alarms)}): {names}{more}"


def _detail(phase: Phase, alarm: Alarm) -> str:
    if phase is Phase.OVER and alarm.until is not None:
        missed = "" if alarm.told_at else "; its beginning could not be told"
        return f"after {span((alarm.until - alarm.since).total_seconds())}{missed}"
    return f"since {alarm.since:%Y-%m-%d %H:%M} UTC: {alarm.why}" if phase is Phase.AGAIN else alarm.why


def span(seconds: float) -> str:
    """Return a span for people: ``42 s``, ``3 min``, ``5 h``, ``2 d``."""
    for size, unit in ((172_800, "d"), (7_200, "h"), (120, "min")):
        if seconds >= size:
            return f"{seconds / {'d': 86_400, 'h': 3_600, 'min': 60}[unit]:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _fact(notice: Notice) -> dict[str, Any]:
    alarm = notice.alarm
    return {
        "alert": alarm.rule,
        "subject": alarm.subject,
        "label": alarm.label,
        "severity": alarm.severity.value,
        "why": alarm.why,
        "status": "over" if notice.phase is Phase.OVER else "firing",
        "again": notice.phase is Phase.AGAIN,
        "since": alarm.since.isoformat(timespec="seconds"),
        "until": alarm.until.isoformat(timespec="seconds") if alarm.until else None,
    }
