"""Where a key is needed, and which headers pass."""

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from gpupool.core.errors import InvalidInputError
from gpupool.gateway.access import KeyCheck, is_loopback, key_is_required
from gpupool.gateway.faults import GatewayError
from gpupool.gateway.headers import request_id_of, to_client, to_upstream


def headers(**given: str) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict({name.replace("_", "-"): value for name, value in given.items()}))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_is_seen(host: str) -> None:
    assert is_loopback(host)
    assert not key_is_required(host, None)
    assert key_is_required(host, True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gpu.example", ""])
def test_any_other_address_needs_a_key_and_cannot_do_without(host: str) -> None:
    assert key_is_required(host, None)
    with pytest.raises(InvalidInputError, match="API key"):
        key_is_required(host, False)


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", "Basic secret", "secret", "Bearer sécret", "Bearer \udce9"]
)
def test_a_wrong_key_is_refused_without_naming_it(given: str) -> None:
    with pytest.raises(GatewayError) as caught:
        KeyCheck("secret").admit(headers(Authorization=given))
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert "secret" not in caught.value.message


def test_the_right_key_is_admitted_and_none_is_needed_where_none_is_set() -> None:
    KeyCheck("secret").admit(headers(Authorization="bearer  secret "))
    KeyCheck(None).admit(headers())


def test_credentials_and_one_hop_headers_do_not_reach_the_upstream() -> None:
    given = headers(
        Host="gateway",
        Authorization="Bearer secret",
        Cookie="a=b",
        Api_Key="k",
        Connection="keep-alive, X-Private",
        X_Private="1",
        Transfer_Encoding="chunked",
        Content_Length="3",
        Accept_Encoding="gzip",
        Traceparent="00-1",
        X_Odd="\udce9",
        Content_Type="application/json",
    )
    passed = to_upstream(given, "req-1")
    assert dict(passed) == {
        "Traceparent": "00-1",
        "Content-Type": "application/json",
        "X-Request-Id": "req-1",
        "Accept-Encoding": "identity",
    }


def test_an_upstream_sets_no_cookie_and_opens_no_origin() -> None:
    given = headers(
        Set_Cookie="a=b",
        Access_Control_Allow_Origin="*",
        Server="llama.cpp",
        Connection="close",
        Content_Length="9",
        X_Model_Time="3",
        Content_Type="application/json",
    )
    assert dict(to_client(given)) == {"X-Model-Time": "3", "Content-Type": "application/json"}


def test_a_fit_request_id_is_kept_and_any_other_replaced() -> None:
    assert request_id_of(headers(X_Request_Id="abc-1.2_3")) == "abc-1.2_3"
    for unfit in ("", "a b", "x" * 101, "a\tb"):
        assert request_id_of(headers(X_Request_Id=unfit)).startswith("req-")
