"""What broadcasts say, in every spelling that was seen, and what is passed over."""

from typing import Any

import pytest

from gpupool.validators.chutes.events import JobNews, Reason, ValidatorNews, understood

KNOWN: list[tuple[str, dict[str, Any]]] = [
    ("chute_created", {"chute_id": "c", "version": "v", "job_only": False}),
    ("chute_updated", {"chute_id": "c", "version": "v", "job_only": True}),
    ("chute_deleted", {"chute_id": "c", "version": "v"}),
    (
        "rolling_update",
        {
            "chute_id": "c",
            "instance_id": "i",
            "miner_hotkey": "5x",
            "old_version": "v",
            "new_version": "w",
            "reason": "update",
        },
    ),
    ("bounty_change", {"chute_id": "c", "bounty": 160}),
    ("image_created", {"image_id": "m"}),
    ("image_deleted", {"image_id": "m"}),
    ("image_updated", {"image_id": "m", "short_tag": "u/n:t", "chute_ids": ["c"], "image": "u/n:t-1"}),
    ("instance_created", {"chute_id": "c", "instance_id": "i", "config_id": "f", "gpu_count": 2}),
    ("instance_verified", {"instance_id": "i", "miner_hotkey": "5x"}),
    ("instance_activated", {"chute_id": "c", "instance_id": "i", "config_id": "f"}),
    ("instance_deleted", {"chute_id": "c", "instance_id": "i", "config_id": None}),
    ("gpu_verified", {"gpu_id": "g", "miner_hotkey": "5x"}),
    ("job_created", {"job_id": "j", "method": "m", "chute_id": "c", "gpu_count": 1, "exclude": ["h200"]}),
    ("job_deleted", {"instance_id": "i", "job_id": "j"}),
]


@pytest.mark.parametrize(("reason", "data"), KNOWN, ids=[reason for reason, _ in KNOWN])
def test_every_reason_is_understood(reason: str, data: dict[str, Any]) -> None:
    news = understood({"reason": reason, "message": "words", "data": data, "filter_recipients": ["5x"]})
    assert isinstance(news, ValidatorNews)
    assert news.reason.value == reason


def test_no_reason_was_left_out() -> None:
    assert [reason for reason, _ in KNOWN if reason not in set(Reason)] == []
    assert len(KNOWN) == len(Reason) == 15


@pytest.mark.parametrize("word", ["exclude", "excluded"])
def test_a_job_in_either_spelling_and_without_disk(word: str) -> None:
    news = understood({"reason": "job_created", "data": {"job_id": "j", "chute_id": "c", word: ["h200"]}})
    assert isinstance(news, ValidatorNews)
    assert isinstance(news.content, JobNews)
    offer = news.content.offer()
    assert (offer.excluded, offer.disk_gb, offer.gpu_count) == (frozenset({"h200"}), None, 1)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (None, "no object"),
        ([1], "no object"),
        ({}, "not known"),
        ({"reason": "pizza_delivered", "data": {}}, "'pizza_delivered' is not known"),
        ({"reason": "chute_created"}, "chute_created: data"),
        ({"reason": "chute_created", "data": {"chute_id": "../../etc", "version": "v"}}, "chute_id"),
        ({"reason": "bounty_change", "data": {"chute_id": "c", "bounty": "much"}}, "bounty"),
        ({"reason": "job_created", "data": {"job_id": "j", "chute_id": "c", "gpu_count": 99}}, "gpu_count"),
    ],
    ids=range(8),
)
def test_what_is_passed_over(message: object, why: str) -> None:
    news = understood(message)
    assert isinstance(news, str)
    assert why in news
