"""What ``recompute doctor`` says of a proxy: one that can serve, and one behind which no server answers."""

from datetime import UTC, datetime
from typing import Literal

import pytest

from gpupool import __version__
from gpupool.cli.checks.recompute import judge_contact, other_ports
from gpupool.contracts.recompute import QueueView, RecomputeServerView
from gpupool.recompute.client.contact import Contact, Found
from gpupool.recompute.client.hosts import Host


def met(levels: list[int], state: Literal["starting", "ready"] = "ready") -> Contact:
    view = RecomputeServerView(
        instance_id="inst-test",
        version=__version__,
        state=state,
        k=[32],
        levels=levels,
        devices=[],
        rates=[],
        queue=QueueView(running=0, waiting=0, room=1),
    )
    return Contact(Host("proxy", 1), Found.SERVER, headers={"x-gpupool-kinds": "http"}, view=view)


@pytest.mark.parametrize(
    ("contact", "verdict", "measured"),
    [
        (met([1, 2]), "pass", "a proxy, ready, levels C1, C2"),
        (met([]), "fail", "a proxy none of whose servers answers it"),
        (met([], "starting"), "warn", "it is starting"),
    ],
)
def test_a_proxy_is_good_only_with_a_server_that_answers(
    contact: Contact, verdict: str, measured: str
) -> None:
    finding, *others = judge_contact(contact, datetime.now(UTC))
    assert (finding.verdict, finding.measured, others) == (verdict, measured, [])
    assert finding.verdict == "pass" or finding.remedy


def test_a_host_that_the_variables_list_under_another_port_is_hinted_at() -> None:
    closed = Contact(Host("rig", 11989), Found.CLOSED)
    (hint,) = other_ports(closed, [("rig", 11990), ("other", 1)])
    assert "port 11990" in hint.measured
    assert hint.remedy is not None
    assert "rig:11990" in hint.remedy
    assert not list(other_ports(closed, [("rig", 11990), ("rig", 11989)]))
    assert not list(other_ports(closed, [("other", 11990)]))
    assert not list(other_ports(met([1]), [("proxy", 2)]))


def test_who_speaks_tls_is_told_how_for_each_tool() -> None:
    (finding,) = judge_contact(Contact(Host("rig", 1), Found.WANTS_TLS), datetime.now(UTC))
    for way in ("https://HOST:PORT", "GPUPOOL_CLIENT_TLS=1", "tls=CA_FILE"):
        assert way in (finding.remedy or "")
