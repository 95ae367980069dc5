"""`./up`'s installer for real, on a small checkout with a lock of one local wheel: no network, no shared state."""

import base64
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

PYPROJECT = """\
[project]
name = "gpupool"
[project.scripts]
gpupool = "gpupool.hello:main"
"""
HELLO = """\
import os, sys
import tiny
def main():
    print(os.environ["GPUPOOL_HOME"], tiny.VALUE, *sys.argv[1:], sep="|")
"""


def make_wheel(folder: Path) -> str:
    """Write a wheel with one module into ``folder`` and return its SHA-256."""
    folder.mkdir()
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    files = {
        "tiny.py": "VALUE = 7\n",
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}"
        for name, text in files.items()
    ]
    files["tiny-1.0.dist-info/RECORD"] = "\n".join([*record, "tiny-1.0.dist-info/RECORD,,", ""])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


@dataclass
class SmallCheckout:
    """A copy of the installer around a product of one module."""

    root: Path
    wheels: Path
    digest: str

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def lock(self) -> Path:
        return self.root / "locks" / "up.txt"

    def write_lock(self, digest: str) -> None:
        self.lock.write_text(f"tiny==1.0 \\\n    --hash=sha256:{digest}\n")

    def start(self, *arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        environment = {
            # No uv: the distribution's own way is the one that has to work everywhere.
            "PATH": "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin",
            "HOME": str(self.root),
            "GPUPOOL_PYTHON": str(Path(sys.base_prefix) / "bin" / "python3"),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": self.wheels.as_uri(),
            "PIP_CONFIG_FILE": os.devnull,
        }
        return subprocess.Popen(
            [str(self.root / "up"), *arguments],
            cwd=cwd or self.root,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str, cwd: Path | None = None) -> "Outcome":
        process = self.start(*arguments, cwd=cwd)
        out, err = process.communicate(timeout=100)
        return Outcome(process.returncode, out, err)


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: int
    out: str
    err: str


@pytest.fixture
def small(tmp_path: Path, checkout: Path) -> SmallCheckout:
    """A fresh small checkout in a folder with spaces in its name."""
    root = tmp_path / "a small checkout"
    shutil.copytree(checkout / "scripts", root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(checkout / "up", root / "up")
    (root / "src" / "gpupool").mkdir(parents=True)
    (root / "src" / "gpupool" / "__init__.py").touch()
    (root / "src" / "gpupool" / "hello.py").write_text(HELLO)
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "locks").mkdir()
    made = SmallCheckout(root, tmp_path / "wheels", make_wheel(tmp_path / "wheels"))
    made.write_lock(made.digest)
    (root / "locks" / "all.txt").write_text(made.lock.read_text())
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_fresh_install_works_and_the_second_run_does_nothing(small: SmallCheckout, tmp_path: Path) -> None:
    first = small.run("--install-only", cwd=tmp_path)
    assert first.status == 0, first.err
    assert "Installing packages" in first.err
    home = small.root / ".gpupool"
    assert [mode(path) for path in (home, home / "logs", home / "logs" / "install.log")] == [
        0o700,
        0o700,
        0o600,
    ]

    link = tmp_path / "gpupool"
    link.symlink_to(small.venv / "bin" / "gpupool")
    said = subprocess.run(
        [link, "a b"], check=True, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert said.stdout == f"{home}|7|a b\n"
    elsewhere = {"PATH": "/usr/bin:/bin", "GPUPOOL_HOME": str(tmp_path / "state")}
    said = subprocess.run([link], check=True, capture_output=True, text=True, env=elsewhere)
    assert said.stdout == f"{tmp_path / 'state'}|7\n"

    made_at = (small.venv / ".gpupool").stat().st_mtime_ns
    second = small.run("--install-only")
    assert (second.status, second.err) == (0, "")
    assert (small.venv / ".gpupool").stat().st_mtime_ns == made_at


def test_a_changed_lock_is_installed_and_a_wrong_hash_is_refused(small: SmallCheckout) -> None:
    small.write_lock("0" * 64)
    refused = small.run("--install-only")
    assert refused.status == 3
    assert "What to do" in refused.err
    assert not small.venv.exists()

    small.write_lock(small.digest)
    assert small.run("--install-only").status == 0


def test_a_half_made_environment_is_made_anew(small: SmallCheckout) -> None:
    (small.venv / "bin").mkdir(parents=True)
    (small.venv / "bin" / "python").touch(mode=0o755)
    (small.venv / "left over").touch()
    assert small.run("--install-only").status == 0
    assert not (small.venv / "left over").exists()


def test_the_environment_of_another_checkout_behind_a_link_is_left_alone(
    small: SmallCheckout, tmp_path: Path
) -> None:
    other = tmp_path / "other" / ".venv"
    (other / "bin").mkdir(parents=True)
    (other / "bin" / "python").symlink_to(sys.executable)
    (other / ".gpupool").write_text("all 0 /other\n")
    small.venv.symlink_to(other)
    outcome = small.run("--install-only")
    assert outcome.status == 3
    assert "is a link to another environment" in outcome.err
    assert small.venv.is_symlink()
    assert (other / ".gpupool").read_text() == "all 0 /other\n"


def test_two_at_once_make_one_environment(small: SmallCheckout) -> None:
    both = [small.start("--install-only") for _ in range(2)]
    outcomes = [process.communicate(timeout=100) for process in both]
    assert [process.returncode for process in both] == [0, 0], outcomes
    assert sum("Installing packages" in err for _, err in outcomes) == 1


def test_an_interrupt_leaves_nothing_half_made(small: SmallCheckout) -> None:
    small.lock.unlink()
    os.mkfifo(small.lock)  # the installer blocks on it
    process = small.start("--install-only")
    assert process.stderr is not None
    for line in process.stderr:
        if "Installing packages" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Interrupted" in err
    assert not small.venv.exists()


def test_a_python_that_does_not_fit_is_named(small: SmallCheckout, tmp_path: Path) -> None:
    old = tmp_path / "python2"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    process = subprocess.run(
        [small.root / "up", "--install-only"],
        env={"PATH": "/usr/bin:/bin", "GPUPOOL_PYTHON": str(old)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 3
    assert f"GPUPOOL_PYTHON names {old}" in process.stderr


def test_help_installs_nothing(small: SmallCheckout) -> None:
    outcome = small.run("--help")
    assert outcome.status == 0
    assert "--once" in outcome.out
    assert not small.venv.exists()
    assert not (small.root / ".gpupool").exists()
