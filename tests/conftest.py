"""What every tier of tests stands on.

A test never meets the developer's own pool: settings from the environment are dropped, and compiled numba code is
shared through one folder so that it is paid for once in a whole run.
"""

import gc
import os
import socket
from pathlib import Path

import hypothesis
import pytest

CHECKOUT = Path(__file__).resolve().parent.parent

for _name in [name for name in os.environ if name.startswith(("GPUPOOL_", "CHIAPOS_"))]:
    del os.environ[_name]
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("NUMBA_CACHE_DIR", str(CHECKOUT / ".numba-cache"))

# Example times vary with the load of a shared machine; a wall-clock limit per example would only flake.
hypothesis.settings.register_profile("gpupool", deadline=None, print_blob=True)
hypothesis.settings.load_profile("gpupool")


_TIERS = ("unit", "contract", "integration", "browser", "chaos")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run quick tiers first, so that a plain mistake shows in the first minute.

    With several workers the longest files come first instead: one that begins last would keep a worker busy alone.
    """
    order = {CHECKOUT / "tests" / tier: number for number, tier in enumerate(_TIERS)}
    parallel = hasattr(config, "workerinput")
    items.sort(key=lambda item: order.get(item.path.parent, len(_TIERS)), reverse=parallel)


def pytest_collection_finish() -> None:
    """Let the collector look at what tests leave behind only, so that it comes round often.

    Beside the many objects of imported modules and collected tests it hardly ever would; and each end of an event
    loop walks through all tasks that are left, so that a test could take twenty times as long as it does alone.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the source tree under test."""
    return CHECKOUT


@pytest.fixture
def free_port() -> int:
    """A TCP port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
