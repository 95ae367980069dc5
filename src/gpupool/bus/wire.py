"""News as bytes: JSON that any later version can read, and that a narrow way can be given without the events."""

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

from gpupool.core.errors import UnavailableError
from gpupool.fleet.events import Event
from gpupool.fleet.ports.bus import News


def encode(news: News, most: int | None = None) -> str:
    """Return news as text; beyond ``most`` bytes without its events, and then without its nodes."""
    text = _text(news)
    for smaller in (replace(news, events=None), replace(news, events=None, nodes=None)):
        if most is None or len(text.encode()) <= most:
            break
        text = _text(smaller)
    return text


def _text(news: News) -> str:
    events = None if news.events is None else [_shown(event) for event in news.events]
    return json.dumps(
        {"origin": news.origin, "seq": news.seq, "events": events, "nodes": news.nodes}, separators=(",", ":")
    )


def _shown(event: Event) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "kind": event.kind,
        "subject": event.subject,
        "at": event.at.isoformat(),
        "data": dict(event.data),
    }


def decode(text: str | bytes) -> News:
    """Return the news in a text; UnavailableError where it is none."""
    try:
        told = json.loads(text)
        events, nodes = told["events"], told["nodes"]
        return News(
            origin=str(told["origin"]),
            seq=int(told["seq"]),
            events=None if events is None else tuple(_event(one) for one in events),
            nodes=None if nodes is None else tuple(str(node) for node in nodes),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UnavailableError(f"What came over the bus is no news: {error}.") from error


def _event(told: dict[str, Any]) -> Event:
    return Event(
        seq=int(told["seq"]),
        kind=str(told["kind"]),
        subject=str(told["subject"]),
        at=datetime.fromisoformat(told["at"]),
        data=told["data"],
    )
