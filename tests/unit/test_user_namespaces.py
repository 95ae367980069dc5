"""An agent that is root only by name, as in a rootless container, gives away no users that it does not have."""

import subprocess
import sys

import pytest

from gpupool.runtimes.process.confinement import has_users

ASK = (
    "from gpupool.runtimes.process.confinement import look; offer = look(); print(offer.wall.name, offer.why)"
)


@pytest.mark.parametrize(
    ("uid_map", "expected"),
    [
        ("         0          0 4294967295\n", True),
        ("         0       1000          1\n", False),
        ("         0       1000          1\n         1     100000      65536\n", True),
        ("         0       1000          1\n         1     100000       1000\n", False),
        ("", False),
    ],
    ids=[
        "no namespace",
        "one user",
        "rootless with a range",
        "rootless with a short range",
        "not set up yet",
    ],
)
def test_the_map_tells_whether_there_are_users_to_give_away(uid_map: str, expected: bool) -> None:
    assert has_users(uid_map) is expected


def test_root_of_a_namespace_of_one_user_takes_the_lower_wall() -> None:
    command = ["unshare", "--map-root-user", sys.executable, "-c", ASK]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    wall, _, why = told.stdout.partition(" ")
    assert wall in {"ALLOW_LIST", "FOLDERS"}
    assert why.strip()
