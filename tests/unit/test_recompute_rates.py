"""How fast a worker is: learnt from its answers, guessed where there are none."""

import pytest

from gpupool.recompute.server.rates import EVERYBODY, Rates, Work

C1, C3, C5 = (Work("proof", level) for level in (1, 3, 5))
QUALITY = Work("quality", 3)


def test_a_worker_is_known_by_its_own_answers() -> None:
    rates = Rates()
    rates.learn(C3, 0.2, "cpu")
    rates.learn(C3, 0.01, "card")
    assert (rates.expected(C3, "cpu"), rates.expected(C3, "card")) == (0.2, 0.01)
    assert rates.best(C3) == 0.01
    assert rates.best(C3, "cpu") == 0.2
    assert rates.best(C1, "cpu") is None
    assert rates.view("cpu")[2].proof_ms == 200.0
    assert rates.view(EVERYBODY)[2].proof_ms not in {None, 10.0}


def test_one_level_tells_of_the_next_and_a_proof_of_a_quality() -> None:
    rates = Rates()
    rates.learn(C3, 0.2, "cpu")
    assert rates.expected(C5, "cpu") == pytest.approx(0.8)
    assert rates.expected(C1, "cpu") == pytest.approx(0.05)
    assert rates.expected(QUALITY, "cpu") == pytest.approx(0.2 / 16)


def test_a_stranger_is_guessed_to_be_fast_so_that_it_is_tried() -> None:
    rates = Rates()
    rates.learn(C5, 0.1, "eight cores")
    assert rates.expected(C5, "new") < rates.expected(C5, "eight cores")
    assert rates.expected(C5, "new") == pytest.approx(16 * rates.expected(C1, "new"))


def test_a_worker_that_was_slow_once_is_tried_again_after_a_while() -> None:
    rates = Rates()
    rates.learn(C3, 2.0, "card")
    for _ in range(600):
        rates.passed_over(C3, "card")
    assert rates.expected(C3, "card") < 0.1
    assert rates.best(C3, "card") == 2.0
    rates.passed_over(C1, "nobody")


def test_the_best_time_is_of_late() -> None:
    rates = Rates()
    rates.doubt(C3)
    for seconds in (9.0, 4.0, 6.0):
        rates.learn(C3, seconds, "cpu")
    assert rates.best(C3, "cpu") == 4.0
    for _ in range(8):
        rates.learn(C3, 7.0, "cpu")
    assert rates.best(C3, "cpu") == 7.0


def test_what_nobody_believes_any_more_is_tried_again() -> None:
    rates = Rates()
    for _ in range(10):
        rates.learn(C3, 8.0, "cpu")
    assert rates.best(C3, "cpu") == 8.0
    for _ in range(7):
        rates.doubt(C3)
    assert (rates.best(C3, "cpu") or 9) < 4.0
    rates.doubt(C5)
    assert rates.best(C5, "cpu") is None


def test_kinds_of_work_that_clients_think_of_do_not_grow_for_ever() -> None:
    rates = Rates()
    for k in range(18, 41):
        for level in range(-14, 10):
            for kind in ("proof", "quality"):
                rates.learn(Work(kind, level, k), 0.1, "cpu")
    assert len(rates._known["cpu"]) == 512


def test_small_v2_plots_tell_nothing_of_large_ones() -> None:
    rates, large = Rates(), Work("solve", 4, 28)
    before = rates.expected(large, "solver")
    rates.learn(Work("solve", 4, 18), 5.0, "solver")
    assert rates.expected(large, "solver") == before
    rates.learn(Work("solve", 2, 28), 2.0, "solver")
    assert 2.0 < rates.expected(large, "solver") < 4.0
