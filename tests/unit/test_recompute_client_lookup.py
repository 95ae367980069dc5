"""One look-up, to the moment: who is asked when, when it gives up, and what it says then."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.core.errors import DeadlineError, InvalidInputError, UnsupportedError
from gpupool.pos.errors import AmbiguousProofError, InvalidProofError, NoProofError
from gpupool.recompute.client.lookup import MOST_AT_ONCE, Lookup
from gpupool.recompute.client.questions import Answer, Question, question_of
from gpupool.recompute.client.table import HostTable
from gpupool.recompute.client.trouble import Follows, HostTroubleError
from gpupool.recompute.demo import demo_request
from virtual_time import run

GOOD, WRONG = (1,), (2,)
TIMEOUT_S = 5.0
QUESTION = question_of(demo_request())
Step = tuple[float, tuple[int, ...] | HostTroubleError]
"""Seconds until a host answers, and what."""
NEVER: Step = (1e9, GOOD)


def trouble(follows: Follows, **more: Any) -> HostTroubleError:
    return HostTroubleError(follows, "failed", **more)


REFUSED = (0.0, trouble(Follows.REST))
BUSY = (0.0, trouble(Follows.PAUSE, pause_s=30.0))
NO_PROOF = (0.01, trouble(Follows.DOUBT, error=NoProofError()))
AMBIGUOUS = (0.01, trouble(Follows.DOUBT, error=AmbiguousProofError()))
UNSUPPORTED = (0.01, trouble(Follows.ELSEWHERE, error=UnsupportedError()))
MALFORMED = (0.01, trouble(Follows.RAISE, error=InvalidInputError()))


class Farm:
    """A client's insides with hosts that do what the test says, one step a question; the last step stays."""

    def __init__(self, **hosts: Step | Sequence[Step]) -> None:
        self.steps = {
            name: [steps] if isinstance(steps, tuple) else list(steps) for name, steps in hosts.items()
        }
        self.table = HostTable((name for name in hosts if name != "local"), 100.0)
        self.asked: list[tuple[float, str]] = []
        self.cancelled: list[str] = []

    async def ask(self, host: str, question: Question, request_id: str, seconds: float) -> tuple[int, ...]:
        now = asyncio.get_running_loop().time()
        self.asked.append((round(now, 3), host))
        steps = self.steps[host]
        delay, outcome = steps.pop(0) if len(steps) > 1 else steps[0]
        try:
            await asyncio.sleep(delay)
        except asyncio.CancelledError:
            self.cancelled.append(host)
            raise
        if not isinstance(outcome, tuple):
            raise outcome
        return outcome

    async def look_up(self, timeout_s: float = TIMEOUT_S) -> Answer:
        local = "local" in self.steps
        return await Lookup(QUESTION, self.table, self.ask, check, timeout_s, local=local).run()

    def states(self) -> dict[str, str]:
        return {view.name: view.state for view in self.table.view(0.0)}

    def outstanding(self) -> Iterable[int]:
        return [view.outstanding for view in self.table.view(0.0)]


def check(_: Question, numbers: tuple[int, ...]) -> None:
    if numbers != GOOD:
        raise InvalidProofError("Not this one.")


def answered(farm: Farm) -> tuple[str, float]:
    """Who answered, and when."""
    answer = run(farm.look_up())
    assert answer.numbers == GOOD
    assert set(farm.outstanding()) == {0}
    return answer.host, round(answer.seconds, 3)


def given_up(farm: Farm, timeout_s: float = TIMEOUT_S) -> tuple[float, str]:
    """When a look-up gave up, and what it said."""

    async def go() -> tuple[float, str]:
        with pytest.raises(DeadlineError) as caught:
            await farm.look_up(timeout_s)
        return asyncio.get_running_loop().time(), caught.value.message

    ended, message = run(go())
    assert set(farm.outstanding()) == {0}
    return ended, message


def test_the_next_host_is_asked_at_once_where_one_fails() -> None:
    for bad in (REFUSED, BUSY, UNSUPPORTED, (0.0, WRONG)):
        farm = Farm(a=bad, b=(0.1, GOOD))
        assert answered(farm) == ("b", round(bad[0] + 0.1, 3))


def test_a_silent_host_is_overtaken_cancelled_and_rests() -> None:
    farm = Farm(a=NEVER, b=(0.1, GOOD))
    assert answered(farm) == ("b", round(TIMEOUT_S / 3 + 0.1, 3))
    assert farm.cancelled == ["a"]
    assert farm.states() == {"a": "resting", "b": "good"}


def test_a_slow_host_may_still_win() -> None:
    farm = Farm(a=(2.0, GOOD), b=NEVER)
    assert answered(farm) == ("a", 2.0)
    assert farm.cancelled == ["b"]


@pytest.mark.parametrize("bad", [REFUSED, BUSY, NEVER, (0.0, WRONG), (0.3, trouble(Follows.REST))])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("timeout_s", [0.05, 5.0, 600.0])
def test_without_a_good_host_it_ends_at_the_deadline_exactly(bad: Step, count: int, timeout_s: float) -> None:
    ended, message = given_up(Farm(**{f"h{i}": bad for i in range(count)}), timeout_s)
    assert ended == pytest.approx(timeout_s, abs=0.001)
    assert f"within {timeout_s:g} s" in message
    assert "h0" in message


def test_a_host_that_comes_back_in_time_is_found_soon() -> None:
    farm = Farm(a=[REFUSED] * 6 + [(0.1, GOOD)])
    host, seconds = answered(farm)
    assert host == "a"
    assert seconds < 2.5
    pauses = [later - sooner for (sooner, _), (later, _) in zip(farm.asked[1:], farm.asked[2:], strict=False)]
    assert pauses == sorted(pauses)
    assert max(pauses) <= 0.5


def test_what_a_host_did_before_is_told_although_it_was_just_asked_again() -> None:
    farm = Farm(a=[(4.9, trouble(Follows.REST)), NEVER])
    assert "a failed" in given_up(farm)[1]
    assert farm.states() == {"a": "resting"}


def test_a_host_that_was_just_asked_is_not_blamed_for_its_silence() -> None:
    farm = Farm(a=[(4.9, trouble(Follows.PAUSE, pause_s=0.05)), NEVER])
    given_up(farm)
    assert farm.table.pick(10.0, QUESTION.speed_class) == "a"


def test_a_dead_host_is_not_hammered_until_the_deadline() -> None:
    farm = Farm(a=REFUSED)
    given_up(farm)
    assert 10 <= len(farm.asked) <= 20


def test_many_look_ups_do_not_bury_a_dead_host_and_each_of_them_says_what_is_wrong() -> None:
    farm = Farm(a=REFUSED)

    async def go() -> list[str]:
        ends = await asyncio.gather(*(farm.look_up() for _ in range(50)), return_exceptions=True)
        return [end.message for end in ends if isinstance(end, DeadlineError)]

    messages = run(go())
    assert len(messages) == 50
    assert all("a failed" in message for message in messages)
    assert len(farm.asked) <= 50 + 20


def test_a_look_up_that_never_got_its_turn_says_so() -> None:
    farm = Farm(a=NEVER)
    farm.table.failed("a", 0.0, "failed")

    async def go() -> None:
        with pytest.raises(DeadlineError, match="a had failed, and was good again too late"):
            await asyncio.gather(farm.look_up(1e-3), back_at_once())

    async def back_at_once() -> None:
        farm.table.answered("a", asyncio.get_running_loop().time(), QUESTION.speed_class, 1.0)

    run(go())


def test_many_look_ups_that_wait_for_a_dead_host_are_all_answered_once_it_is_back() -> None:
    farm = Farm(a=[REFUSED] * 60 + [(0.1, GOOD)])

    async def go() -> list[Answer]:
        return list(await asyncio.gather(*(farm.look_up(20.0) for _ in range(50))))

    assert {answer.numbers for answer in run(go())} == {GOOD}
    assert set(farm.outstanding()) == {0}


def test_at_most_four_hosts_are_waited_for_and_still_every_one_gets_its_turn() -> None:
    farm = Farm(**dict.fromkeys("abcdef", NEVER), g=(0.01, GOOD))
    assert answered(farm)[0] == "g"
    assert sorted(farm.cancelled) == list("abcdef")
    assert farm.cancelled[: 7 - MOST_AT_ONCE] == list("abc")


def test_a_liar_is_asked_again_only_when_nobody_else_is_left() -> None:
    farm = Farm(a=(0.0, WRONG), b=[(0.1, GOOD), (0.1, GOOD), REFUSED])
    assert answered(farm)[0] == "b"
    assert answered(farm)[0] == "b"
    assert [host for _, host in farm.asked] == ["a", "b", "b"]
    _, message = given_up(farm)
    assert "a answered wrong" in message
    assert farm.states()["a"] == "quarantined"


def test_a_liar_that_tells_the_truth_helps_when_all_others_are_down() -> None:
    farm = Farm(a=[(0.0, WRONG), (0.1, GOOD)], b=[(0.1, GOOD), REFUSED])
    assert [answered(farm)[0] for _ in range(2)] == ["b", "a"]
    assert farm.states() == {"a": "quarantined", "b": "resting"}


def test_no_proof_needs_two_hosts_that_say_so() -> None:
    with pytest.raises(NoProofError):
        run(Farm(a=NO_PROOF, b=NO_PROOF).look_up())
    with pytest.raises(NoProofError):
        run(Farm(a=NO_PROOF, b=REFUSED).look_up())
    with pytest.raises(NoProofError):
        run(Farm(a=NO_PROOF).look_up())


def test_who_denies_a_proof_that_there_is_goes_to_quarantine() -> None:
    farm = Farm(a=NO_PROOF, b=(0.1, GOOD))
    assert answered(farm)[0] == "b"
    assert farm.states() == {"a": "quarantined", "b": "good"}


def test_who_finds_two_proofs_did_not_lie() -> None:
    farm = Farm(a=AMBIGUOUS, b=(0.1, GOOD))
    assert answered(farm)[0] == "b"
    assert farm.states()["a"] == "good"


def test_a_question_that_nobody_takes_is_refused_at_once() -> None:
    farm = Farm(a=UNSUPPORTED, b=UNSUPPORTED)
    with pytest.raises(UnsupportedError):
        run(farm.look_up())
    with pytest.raises(InvalidInputError):
        run(Farm(a=MALFORMED, b=(0.1, GOOD)).look_up())


def test_this_machine_is_the_last_resort() -> None:
    assert answered(Farm(a=(0.1, GOOD), local=(0.0, GOOD))) == ("a", 0.1)
    assert answered(Farm(a=REFUSED, b=BUSY, local=(0.2, GOOD))) == ("local", 0.2)
    assert answered(Farm(a=NEVER, local=(0.2, GOOD)))[0] == "local"
    assert answered(Farm(a=NO_PROOF, local=(0.2, GOOD)))[0] == "local"
    farm = Farm(a=[REFUSED, REFUSED, (0.1, GOOD)], local=(0.2, trouble(Follows.ELSEWHERE)))
    assert answered(farm)[0] == "a"


def test_whoever_stops_waiting_stops_the_work() -> None:
    farm = Farm(a=NEVER)

    async def go() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(farm.look_up(), 1.0)

    run(go())
    assert farm.cancelled == ["a"]
    assert set(farm.outstanding()) == {0}


FAULTS: list[Callable[[], Step]] = [
    lambda: REFUSED, lambda: BUSY, lambda: NEVER, lambda: NO_PROOF, lambda: UNSUPPORTED, lambda: (0.0, WRONG),
]  # fmt: skip


@given(
    bad=st.lists(st.lists(st.sampled_from(FAULTS), min_size=1, max_size=4), max_size=6),
    place=st.integers(0, 6),
    rounds=st.integers(1, 5),
)
def test_one_good_host_is_enough_whatever_the_others_do(
    bad: list[list[Callable[[], Step]]], place: int, rounds: int
) -> None:
    scripts: list[tuple[str, Step | list[Step]]] = [
        (f"bad{i}", [fault() for fault in faults]) for i, faults in enumerate(bad)
    ]
    scripts.insert(place, ("good", (0.1, GOOD)))
    farm = Farm(**dict(scripts))

    async def go() -> None:
        for _ in range(rounds):
            assert (await farm.look_up()).host == "good"

    run(go())
    assert set(farm.outstanding()) == {0}
