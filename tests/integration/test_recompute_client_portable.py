"""The client and its tools run where POSIX-only modules and uvloop do not exist, as on Windows."""

import os
import subprocess
import sys
from pathlib import Path

from recompute_hosts import hosts

PROGRAM = """
import sys
for name in ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "syslog", "uvloop", "readline"):
    sys.modules[name] = None
import os
for name in ("fork", "pidfd_open", "sched_getaffinity", "geteuid", "getuid", "killpg", "setsid"):
    if hasattr(os, name):
        delattr(os, name)
{body}
"""
LOOK_UP = """
from gpupool.recompute.client import Client, ClientOptions, Host
from gpupool.recompute.demo import demo_request, known_proof
options = ClientOptions.from_environment()
with Client(options) as client:
    assert client.recover_proof(demo_request(), timeout_s=60).numbers == known_proof().xs
print("recovered")
"""
TOOLS = """
from gpupool.cli.main import main
sys.argv = ["gpupool", "recompute", *{arguments!r}]
main()
"""


def run(checkout: Path, body: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")} | variables
    command = [sys.executable, "-c", PROGRAM.format(body=body)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_look_up_needs_nothing_of_posix(checkout: Path) -> None:
    with hosts("") as (host,):
        done = run(checkout, LOOK_UP, CHIAPOS_RECOMPUTE_HOST=host.name)
    assert (done.returncode, done.stdout.strip()) == (0, "recovered"), done.stderr


def test_the_tools_need_nothing_of_posix(checkout: Path) -> None:
    with hosts("") as (host,):
        for arguments in (
            ["check", host.name, "--seconds", "60"],
            ["doctor", host.name],
            ["farm", host.name, "--count", "3", "--seconds", "60"],
            ["env", host.name, "--shell", "cmd"],
        ):
            done = run(checkout, TOOLS.format(arguments=arguments))
            assert done.returncode == 0, (arguments, done.stderr)
            assert host.name in done.stdout
