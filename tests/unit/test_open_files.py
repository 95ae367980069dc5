"""How many connections there is room for where descriptors are few."""

import resource

import pytest
import structlog

from gpupool.core import open_files
from gpupool.core.open_files import allow_most, connections_within


def test_the_limit_is_raised_as_far_as_it_goes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        assert allow_most() == (None if hard == resource.RLIM_INFINITY else hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("limit", "wanted", "each", "room"),
    [
        (None, 4096, 2, 4096),
        (1_000_000, 4096, 2, 4096),
        (1024, 4096, 2, 480),
        (64, 4096, 2, 21),
        (64, 2000, 1, 43),
        (1, 5, 2, 1),
    ],
)
def test_there_are_never_more_connections_than_descriptors_for_them(
    limit: int | None, wanted: int, each: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = structlog.testing.LogCapture()
    monkeypatch.setattr(open_files, "log", structlog.wrap_logger(None, processors=[capture]))
    assert connections_within(limit, wanted, each) == room
    assert [line["event"] for line in capture.entries] == (["few_open_files"] if room < wanted else [])
