"""What the collector passes over, and when it looks at all of it."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from fleet_samples import NOON
from gpupool.control.collecting import WHOLE_SECONDS, Collector
from gpupool.control.pool import Pool
from gpupool.core.clock import FakeClock


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_is_set_aside_is_looked_at_once_an_hour() -> None:
    clock = FakeClock(NOON)
    collector = Collector(Pool(object(), clock))  # type: ignore[arg-type]
    ring = Ring()
    seen = weakref.ref(ring)
    collector.set_aside()
    assert gc.get_freeze_count() > 0
    del ring
    gc.collect()
    assert seen() is not None
    clock.advance(WHOLE_SECONDS - 1)
    collector.set_aside()
    assert seen() is not None
    clock.advance(1)
    collector.set_aside()
    assert seen() is None
    assert gc.get_freeze_count() > 0
