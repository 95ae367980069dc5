"""How often one address may ask."""

import pytest

from gpupool.control.http.rates import AddressRates
from gpupool.core.clock import FakeClock
from gpupool.core.errors import BusyError


def taken(rates: AddressRates, address: str, most: int = 100) -> int:
    """Return how many requests are taken before one is refused."""
    for count in range(most):
        try:
            rates.take(address)
        except BusyError:
            return count
    return most


def test_a_burst_passes_and_then_only_the_rate() -> None:
    clock = FakeClock()
    rates = AddressRates(clock, per_second=2, burst=5)
    assert taken(rates, "a") == 5
    clock.advance(1)
    assert taken(rates, "a") == 2
    clock.advance(3600)
    assert taken(rates, "a") == 5


def test_one_address_costs_another_nothing() -> None:
    rates = AddressRates(FakeClock(), per_second=1, burst=3)
    assert [taken(rates, address) for address in "aba"] == [3, 3, 0]


def test_what_is_refused_says_when_to_come_back() -> None:
    rates = AddressRates(FakeClock(), per_second=0.25, burst=1)
    rates.take("a")
    with pytest.raises(BusyError) as caught:
        rates.take("a")
    assert caught.value.retry_after == 4


def test_its_memory_is_bounded() -> None:
    rates = AddressRates(FakeClock(), per_second=1, burst=1)
    for number in range(10_000):
        rates.take(str(number))
    assert taken(rates, "9999") == 0
    assert taken(rates, "0") == 1
