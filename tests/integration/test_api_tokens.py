"""API tokens: each opens what its role allows, until it is revoked or over, and the events tell whose it was."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from control_stage import Stage, stage
from gpupool.control.authorising import needed_role
from gpupool.core.clock import FakeClock
from gpupool.fleet.api_tokens import Role

READ = [
    ("GET", "/v1/nodes"),
    ("GET", "/v1/workloads"),
    ("GET", "/v1/events"),
    ("GET", "/v1/endpoints?protocol=openai"),
]
CHANGE = [("DELETE", "/v1/workloads/none"), ("POST", "/v1/join-tokens"), ("DELETE", "/v1/nodes/none")]
RULE = [("GET", "/v1/tokens"), ("POST", "/v1/tokens"), ("DELETE", "/v1/tokens/none")]
EVERYTHING = {Role.VIEWER: READ, Role.OPERATOR: CHANGE, Role.ADMIN: RULE}


async def made(on: Stage, name: str, role: str, **more: Any) -> dict[str, Any]:
    reply = await on.client.post("/v1/tokens", json={"name": name, "role": role, **more})
    assert reply.status_code == 201, reply.text
    token: dict[str, Any] = reply.json()
    return token


async def test_each_role_opens_what_it_may_and_nothing_else(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        for role in Role:
            token = await made(on, f"a-{role.value}", role.value)
            async with on.anonymous(token["token"]) as client:
                for needed, requests in EVERYTHING.items():
                    for method, path in requests:
                        reply = await client.request(method, path, json={} if method == "POST" else None)
                        allowed = role.rank >= needed.rank
                        assert (reply.status_code != 403) is allowed, (role, method, path, reply.text)
                        assert reply.status_code != 401
                        if not allowed:
                            assert needed.value in reply.json()["detail"]


async def test_nothing_of_a_token_but_its_digest_is_kept_and_it_is_shown_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        token = await made(on, "grafana", "viewer", valid_days=30)
        assert token["token"].startswith("gpa_")
        [shown] = await on.get("/v1/tokens")
        assert (shown["name"], shown["usable"], "token" in shown, "digest" in shown) == (
            "grafana",
            True,
            False,
            False,
        )
        events = await on.get("/v1/events")
        secret = token["token"].removeprefix("gpa_")
        assert secret not in str(events)
        assert all(secret.encode() not in path.read_bytes() for path in (tmp_path / "home/data").iterdir())


async def test_events_tell_whose_token_it_was(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        token = await made(on, "alice", "operator")
        async with on.anonymous(token["token"]) as client:
            assert (await client.post("/v1/join-tokens", json={})).status_code == 201
        by = {
            event["kind"]: event["data"]["by"]
            for event in await on.get("/v1/events")
            if "by" in event["data"]
        }
        assert (by["node.invited"], by["token.made"]) == ("alice@127.0.0.1", "operator@127.0.0.1")


async def test_a_revoked_token_opens_nothing_from_the_next_request_on(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        token = await made(on, "alice", "admin")
        async with on.anonymous(token["token"]) as client:
            assert (await client.get("/v1/nodes")).status_code == 200
            assert (await client.delete("/v1/tokens/alice")).status_code == 204
            reply = await client.get("/v1/nodes")
            assert (reply.status_code, "alice was revoked" in reply.json()["detail"]) == (401, True)
        assert (await on.client.delete("/v1/tokens/alice")).status_code == 404
        again = await made(on, "alice", "viewer")
        assert again["id"] != token["id"]


async def test_a_token_is_over_when_its_time_is(tmp_path: Path) -> None:
    clock = FakeClock()
    async with stage(tmp_path, clock) as on:
        token, lasting = (
            await made(on, "a", "viewer", valid_days=1),
            await made(on, "b", "viewer", valid_days=None),
        )
        async with on.anonymous(token["token"]) as client, on.anonymous(lasting["token"]) as other:
            clock.advance(timedelta(hours=23).total_seconds())
            assert (await client.get("/v1/nodes")).status_code == 200
            clock.advance(timedelta(hours=2).total_seconds())
            reply = await client.get("/v1/nodes")
            assert (reply.status_code, "expired at" in reply.json()["detail"]) == (401, True)
            assert (await other.get("/v1/nodes")).status_code == 200


@pytest.mark.parametrize("token", ["gpa_", "gpa_wrong", "gpj_wrong", "x" * 4000])
async def test_a_wrong_token_opens_nothing(tmp_path: Path, token: str) -> None:
    async with stage(tmp_path) as on, on.anonymous(token) as client:
        for path in ("/v1/nodes", "/v1/tokens"):
            reply = await client.get(path)
            assert (reply.status_code, reply.json()["code"]) == (401, "unauthorized")


async def test_a_name_is_taken_once_and_bad_wishes_change_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        await made(on, "alice", "viewer")
        for wish, status in (
            ({"name": "alice", "role": "viewer"}, 409),
            ({"name": "Alice!", "role": "viewer"}, 400),
            ({"name": "bob", "role": "root"}, 400),
            ({"name": "bob", "role": "viewer", "valid_days": 0}, 400),
            ({"name": "bob", "role": "viewer", "secret": "mine"}, 400),
        ):
            assert (await on.client.post("/v1/tokens", json=wish)).status_code == status, wish
        assert [token["name"] for token in await on.get("/v1/tokens")] == ["alice"]


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/v1/nodes", Role.VIEWER),
        ("HEAD", "/metrics", Role.VIEWER),
        ("POST", "/v1/nodes", Role.OPERATOR),
        ("OPTIONS", "/v1/nodes", Role.OPERATOR),
        ("GET", "/v1/tokens", Role.ADMIN),
        ("DELETE", "/v1/tokens/a", Role.ADMIN),
        ("GET", "/v1/tokens-of-others", Role.VIEWER),
        ("GET", "/v1/hotkeys", Role.ADMIN),
        ("DELETE", "/v1/hotkeys/a", Role.ADMIN),
        ("GET", "/servers/", Role.VIEWER),
        ("GET", "/servers/a/delete_preflight", Role.VIEWER),
        ("GET", "/servers/a/lock", Role.OPERATOR),
        ("GET", "/servers/a/unlock", Role.OPERATOR),
        ("GET", "/v1/nodes/lock", Role.VIEWER),
        ("DELETE", "/deployments/purge", Role.OPERATOR),
    ],
)
def test_the_least_role_of_a_request(method: str, path: str, role: Role) -> None:
    assert needed_role(method, path) is role
