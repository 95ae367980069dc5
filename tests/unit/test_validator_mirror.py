"""What is believed of a validator's lists: nothing is lost to a bad list, and what is really gone goes in the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.fleet.offers import Listing
from gpupool.validators.chutes.mirror import CONFIRMATIONS, LANDSLIDE_CONFIRMATIONS, Difference, Mirror


def mirror(*keys: str) -> Mirror[int]:
    made: Mirror[int] = Mirror()
    made.take(Listing(dict.fromkeys(keys, 1)))
    return made


def test_additions_and_changes_count_at_once() -> None:
    seen = mirror("a", "b")
    assert seen.take(Listing({"a": 1, "b": 2, "c": 3})) == Difference({"c": 3}, {"b": 2})
    assert not seen.take(Listing({"a": 1, "b": 2, "c": 3}))


def test_a_deletion_takes_two_whole_lists_in_a_row() -> None:
    seen = mirror("a", "b", "c")
    assert not seen.take(Listing({"a": 1, "b": 1}))
    assert (list(seen.doubtful), seen.known) == (["c"], {"a": 1, "b": 1, "c": 1})
    assert seen.take(Listing({"a": 1, "b": 1})) == Difference(gone={"c": 1})
    assert seen.known == {"a": 1, "b": 1}


@pytest.mark.parametrize("between", ["failed", "back", "unusable"])
def test_the_count_begins_anew_after(between: str) -> None:
    seen = mirror("a", "b", "c")
    seen.take(Listing({"a": 1, "b": 1}))
    if between == "failed":
        seen.fail()
    else:
        more = {"c": 1} if between == "back" else {}
        seen.take(Listing({"a": 1, "b": 1, **more}, {"c": "no image"} if between == "unusable" else {}))
    assert not seen.take(Listing({"a": 1, "b": 1}))
    assert "c" in seen.known


def test_a_landslide_takes_far_longer() -> None:
    seen = mirror(*"abcdefgh")
    for _ in range(LANDSLIDE_CONFIRMATIONS - 1):
        assert not seen.take(Listing({"a": 1}))
    assert sorted(seen.take(Listing({"a": 1})).gone) == list("bcdefgh")


def test_an_empty_list_is_a_landslide_and_a_short_outage_of_it_loses_nothing() -> None:
    seen = mirror(*"abcd")
    for _ in range(LANDSLIDE_CONFIRMATIONS - 1):
        assert not seen.take(Listing({}))
    assert not seen.take(Listing(dict.fromkeys("abcd", 1)))
    assert not seen.doubtful


def test_silence_is_believed_late_however_little_it_ends() -> None:
    seen = mirror("a")
    for _ in range(LANDSLIDE_CONFIRMATIONS - 1):
        assert not seen.take(Listing({}, silent=True))
    assert seen.take(Listing({}, silent=True)).gone == {"a": 1}


def test_a_small_catalog_can_end() -> None:
    seen = mirror("a")
    seen.take(Listing({}))
    assert seen.take(Listing({})).gone == {"a": 1}


def test_news_outrun_the_list() -> None:
    seen = mirror("a", "b")
    seen.announce("new", 7)
    assert seen.known["new"] == 7
    assert not seen.take(Listing({"a": 1, "b": 1})), "the list was read before"
    assert not seen.take(Listing({"a": 1, "b": 1, "new": 7}))
    assert seen.confirm("new") == 7
    assert seen.take(Listing({"a": 1, "b": 1, "new": 7})).appeared == {"new": 7}


def test_what_was_believed_before_a_restart_is_believed_after() -> None:
    seen = Mirror({"a": 1, "b": 1})
    assert (seen.readings, seen.take(Listing({"a": 1}))) == (0, Difference())
    assert seen.take(Listing({"a": 1})).gone == {"b": 1}


Readings = st.lists(
    st.one_of(st.none(), st.tuples(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")))),
    max_size=40,
)


@given(Readings)
def test_nothing_goes_that_a_recent_list_has_shown(readings: list[tuple[set[str], set[str]] | None]) -> None:
    """The rule itself, said another way: what goes was in none of the last whole lists, and nothing failed between."""
    seen = mirror(*"abcdef")
    history: list[set[str] | None] = []
    for reading in readings:
        if reading is None:
            seen.fail()
            history.append(None)
            continue
        listed, unusable = reading
        gone = seen.take(Listing(dict.fromkeys(listed, 1), dict.fromkeys(unusable, "no image"))).gone
        history.append(listed | unusable)
        for key in gone:
            assert all(entry is not None and key not in entry for entry in history[-CONFIRMATIONS:])
        assert set(seen.known) >= listed
