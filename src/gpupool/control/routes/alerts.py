"""Alarms, silences, and a test of those who are told."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request
from pydantic import TypeAdapter
from starlette.responses import Response

from gpupool.contracts.alerts import (
    AlarmView,
    AlertsView,
    AlertTestRequest,
    DeliveryView,
    SilenceRequest,
    SilenceView,
    TargetView,
)
from gpupool.control.alerts.desk import AlertDesk
from gpupool.control.alerts.rules import RULES
from gpupool.control.alerts.telling import silences_on
from gpupool.control.routes.paging import JSON, By, PoolHere, answer
from gpupool.core.errors import LimitReachedError, NotFoundError
from gpupool.core.ids import new_id
from gpupool.fleet.alarms import Alarm, Silence
from gpupool.notify.courier import Delivery

router = APIRouter(prefix="/v1", tags=["alerts"])
MOST_SILENCES: Final = 1000


async def _desk(request: Request) -> AlertDesk:
    desk: AlertDesk = request.app.state.alerts
    return desk


DeskHere = Annotated[AlertDesk, Depends(_desk)]


@router.get("/alerts", response_model=AlertsView)
async def list_alerts(pool: PoolHere, desk: DeskHere) -> Response:
    """List what is wrong, who is told, and how the latest messages went."""
    now = pool.clock.now()
    known, silences = await desk.shown()
    alarms = sorted(known, key=lambda alarm: (alarm.since, alarm.key))
    return answer(
        AlertsView(
            alarms=[
                _alarm_view(alarm, [silence.id for silence in silences_on(alarm, silences, now)])
                for alarm in alarms
            ],
            targets=[
                TargetView(name=courier.target, kind=courier.kind, least=least, waiting=courier.waiting)
                for courier, least in desk.couriers
            ],
            deliveries=[_delivery_view(done) for done in desk.deliveries],
        )
    )


@router.post("/alerts/test", response_model=list[DeliveryView])
async def test_alerts(desk: DeskHere, wanted: AlertTestRequest) -> Response:
    """Send a test message to one target or all of them, and tell how that went."""
    done = await desk.test(wanted.to)
    return Response(
        TypeAdapter(list[DeliveryView]).dump_json([_delivery_view(one) for one in done]), media_type=JSON
    )


@router.get("/silences", response_model=list[SilenceView])
async def list_silences(pool: PoolHere, desk: DeskHere) -> Response:
    """List the silences in force, oldest first."""
    now = pool.clock.now()
    async with pool.store.read() as reader:
        kept = await reader.silences()
    alarms, _ = await desk.shown()
    shown = [_silence_view(silence, alarms, pool) for silence in kept if now < silence.until]
    return Response(TypeAdapter(list[SilenceView]).dump_json(shown), media_type=JSON)


@router.post("/silences", response_model=SilenceView, status_code=201)
async def add_silence(pool: PoolHere, desk: DeskHere, by: By, wanted: SilenceRequest) -> Response:
    """Tell nothing of the alarms that a pattern fits, for a while."""
    async with pool.change(by) as change:
        if len(await change.writer.silences()) >= MOST_SILENCES:
            raise LimitReachedError(f"There are {MOST_SILENCES} silences, and no more may be.")
        silence = Silence(
            id=new_id("sil"),
            pattern=wanted.pattern,
            until=change.at + timedelta(seconds=wanted.seconds),
            why=wanted.why,
            by=wanted.by,
            created_at=change.at,
        )
        await change.writer.put_silence(silence)
        until = silence.until.isoformat(timespec="seconds")
        await change.emit(
            "alert.silenced",
            silence.id,
            pattern=silence.pattern,
            until=until,
            why=silence.why,
            said_by=silence.by,
        )
    desk.silences.append(silence)
    alarms, _ = await desk.shown()
    return answer(_silence_view(silence, alarms, pool), status=201)


@router.delete("/silences/{silence_id}", status_code=204, response_class=Response)
async def remove_silence(pool: PoolHere, desk: DeskHere, by: By, silence_id: str) -> Response:
    """End a silence now."""
    async with pool.change(by) as change:
        if not await change.writer.drop_silence(silence_id):
            raise NotFoundError(
                f"There is no silence {silence_id[:100]!r}.", remedy="See `gpupool alerts silences`."
            )
        await change.emit("alert.unsilenced", silence_id)
    desk.silences = [silence for silence in desk.silences if silence.id != silence_id]
    return Response(status_code=204)


def _alarm_view(alarm: Alarm, silenced_by: list[str]) -> AlarmView:
    return AlarmView(
        rule=alarm.rule,
        title=RULES[alarm.rule].title,
        subject=alarm.subject,
        label=alarm.label,
        severity=alarm.severity,
        why=alarm.why,
        since=alarm.since,
        until=alarm.until,
        told_at=alarm.told_at,
        silenced_by=silenced_by,
    )


def _silence_view(silence: Silence, alarms: Sequence[Alarm], pool: PoolHere) -> SilenceView:
    now = pool.clock.now()
    return SilenceView(
        id=silence.id,
        pattern=silence.pattern,
        until=silence.until,
        why=silence.why,
        by=silence.by,
        created_at=silence.created_at,
        covers=sum(silence.covers(alarm, now) for alarm in alarms),
    )


def _delivery_view(done: Delivery) -> DeliveryView:
    return DeliveryView(
        target=done.target,
        at=done.at,
        outcome=done.outcome.value,
        why=done.why,
        seconds=done.seconds,
        final=done.final,
    )
