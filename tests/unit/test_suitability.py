"""Which worker may take a question: what is too small for a card, of another size, or has failed there, is the CPU's."""

from dataclasses import replace

import pytest

from dispatch_sim import place, question
from gpupool.devices.recovery import quads
from gpupool.pos.costs import Kind
from gpupool.recompute.server import suitability
from gpupool.recompute.server.suitability import CARD_TRIES, Suitability, log_entries
from gpupool.recompute.server.tickets import Ticket

CARD, CPU = place("gpu", 0.1, 2).plan, place("cpu", 0.1, 2).plan


def ticket(level: int = 3, kind: Kind = "proof", k: int = 32) -> Ticket:
    return Ticket(kind, replace(question(1, level), k=k), 1.0)


@pytest.mark.parametrize(
    ("kind", "level", "entries"),
    [("proof", 1, 22), ("proof", 5, 26), ("quality", 1, 18), ("quality", 4, 21)],
)
async def test_a_job_is_as_large_as_the_f1_entries_it_needs(kind: Kind, level: int, entries: int) -> None:
    asked = ticket(level, kind)
    assert log_entries(kind, question(1, level)) == entries
    assert Suitability(entries).may(CARD, asked, with_cpu=True)
    assert not Suitability(entries + 1).may(CARD, asked, with_cpu=True)
    assert Suitability(entries + 1).may(CARD, asked, with_cpu=False)


async def test_the_cpu_takes_everything_and_a_card_only_what_its_kernels_know() -> None:
    rules = Suitability(0)
    for asked in (ticket(k=33), ticket(level=-6)):
        assert rules.may(CPU, asked, with_cpu=True)
        assert not rules.may(CARD, asked, with_cpu=True)
        assert not rules.may(CARD, asked, with_cpu=False)
    assert rules.may(CARD, ticket(level=-5), with_cpu=True)
    assert suitability.LEAST_BITS == quads.LEAST_BITS


async def test_a_card_that_failed_over_a_question_does_not_get_it_again() -> None:
    rules, failed, tried, doubted = Suitability(), ticket(), ticket(), ticket()
    failed.avoided.add(CARD.factory)
    tried.tries = CARD_TRIES
    doubted.doubted = CARD
    for asked in (failed, tried, doubted):
        assert not rules.may(CARD, asked, with_cpu=True)
        assert rules.may(CARD, asked, with_cpu=False)
