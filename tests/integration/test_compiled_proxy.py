"""The proxy in its compiled form: the same tests pass, edits are never passed over, and a process says what it runs."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpupool.core import compiled
from gpupool.core.compiled import DIGEST, digest_of, modules_of, prefer_compiled
from gpupool.recompute.proxy.compiled import GROUP, MODULES, PACKAGES
from proxy_program import COMMAND, program

CHECKOUT = Path(__file__).resolve().parents[2]
QUICK = (
    "tests/unit/test_balancing_*.py",
    "tests/unit/test_dispatching_*.py",
    "tests/integration/test_proxy_http.py",
)
MORE = (
    "tests/unit/test_proxy_*.py",
    "tests/integration/test_proxy_frames.py",
    "tests/integration/test_proxy_checks.py",
)


def run_compiled(patterns: tuple[str, ...], cache: Path) -> subprocess.CompletedProcess[str]:
    files = [str(file) for pattern in patterns for file in sorted(CHECKOUT.glob(pattern))]
    assert len(files) >= len(patterns)
    command = [sys.executable, "-P", str(CHECKOUT / "tests" / "compiled_run.py")]
    return subprocess.run(
        [*command, "-q", "-n", "0", "-m", "not slow", "-o", f"cache_dir={cache}", *files],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=CHECKOUT,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT / "tests")},
    )


@pytest.mark.timeout(320)
def test_the_same_tests_pass(tmp_path: Path) -> None:
    done = run_compiled(QUICK, tmp_path)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_all_the_other_tests_of_these_modules_pass(tmp_path: Path) -> None:
    done = run_compiled(MORE, tmp_path)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    ("variable", "runs"), [({}, True), ({"GPUPOOL_COMPILED": "0"}, False)], ids=["", "0"]
)
async def test_a_process_says_which_form_it_runs(
    free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: dict[str, str], runs: bool
) -> None:
    monkeypatch.setenv("GPUPOOL_HOME", str(tmp_path))
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    async with program(COMMAND, "recompute", "proxy", "-p", str(free_port), "-n", "localhost") as started:
        await started.listening()
    (line,) = [line for line in started.log if '"proxy_listening"' in line]
    assert json.loads(line)["compiled"] is runs


def test_what_was_made_from_other_sources_is_left(tmp_path: Path) -> None:
    here = compiled.folders()[-1]
    assert prefer_compiled("none", ["gpupool.core.ids"], ["gpupool.core"], [tmp_path]) == "none is there"
    copy = shutil.copytree(here, tmp_path / "copy")
    assert (copy / DIGEST).read_text().strip() == digest_of(modules_of(PACKAGES)), "run make compiled"
    (copy / DIGEST).write_text("0" * 64)
    before = list(sys.meta_path)
    assert prefer_compiled(GROUP, MODULES, PACKAGES, [copy]) == "it was made from other sources"
    assert sys.meta_path == before


def test_one_edit_changes_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_PACKAGES", tmp_path)
    (tmp_path / "a").mkdir()
    seen = set()
    for text in ("x = 1\n", "x = 2\n", "x = 1\n"):
        (tmp_path / "a" / "b.py").write_text(text)
        seen.add(digest_of(modules_of(["a"])))
    assert len(seen) == 2


def test_whatever_a_compiled_module_imports_of_ours_is_watched() -> None:
    """It holds constants of other modules too, so an edit there counts as well."""
    watched, imported = set(modules_of(PACKAGES)), set()
    for module in MODULES:
        for node in ast.walk(ast.parse(compiled.source_of(module).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpupool."):
                imported.add(node.module)
    packages = {
        name for name in imported if name is not None and compiled.source_of(name).with_suffix("").is_dir()
    }
    assert imported - packages <= watched
    assert {f"{name}.__init__" for name in packages} <= watched
    assert set(MODULES) <= watched
