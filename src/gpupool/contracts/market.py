"""The embedded market's owner interface: what is published, asked for and earned, as messages."""

from typing import Any

from gpupool.contracts.base import Message


class MarketChuteView(Message):
    """A chute of the catalog, as its owner sees it."""

    chute_id: str
    user_id: str
    name: str
    version: str
    image: str | None
    supported_gpus: list[str]
    gpus: int = 1
    target: int = 0
    """Instances wanted."""
    instances: int = 0
    """Instances there are."""


class MarketImageView(Message):
    """An image of the catalog."""

    image_id: str
    image: str
    """Its reference, with a patch level where it was built anew."""


class MarketJobView(Message):
    """A job that somebody asked for."""

    job_id: str
    chute_id: str
    method: str
    status: str
    miner_hotkey: str | None
    created_at: str
    finished_at: str | None
    result: dict[str, Any] = {}


class LedgerLine(Message):
    """What one instance earned up to a moment."""

    at: float
    """Seconds since 1970."""
    kind: str
    """``compute`` or ``bounty``."""
    hotkey: str
    chute_id: str
    instance_id: str
    server_id: str
    short_ref: str
    gpus: int
    seconds: float
    units: float
    usd: float
