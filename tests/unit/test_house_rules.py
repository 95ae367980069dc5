"""Rules about the source tree that no linter holds."""

import ast
import re
import stat
from pathlib import Path

import pytest

MAX_LINES = 500
MAX_FUNCTION_LINES = 45
VAGUE_NAMES = {"utils", "util", "helpers", "manager", "misc", "common"}


def modules(checkout: Path) -> list[Path]:
    found = [
        path for top in ("src", "tests", "benchmarks", "scripts") for path in (checkout / top).rglob("*.py")
    ]
    assert len(found) > 50
    return found


def test_no_module_is_longer_than_500_lines(checkout: Path) -> None:
    long = {str(path): len(path.read_text().splitlines()) for path in modules(checkout)}
    assert {path: count for path, count in long.items() if count > MAX_LINES} == {}


def test_every_module_says_why_it_exists(checkout: Path) -> None:
    silent = [
        str(path)
        for path in modules(checkout)
        if (source := path.read_text()).strip() and not ast.get_docstring(ast.parse(source))
    ]
    assert silent == []


def test_no_module_has_a_vague_name(checkout: Path) -> None:
    assert [str(path) for path in modules(checkout) if path.stem in VAGUE_NAMES] == []


def test_functions_of_the_product_are_short(checkout: Path) -> None:
    """95 in 100 have at most 45 lines; a table-like one may be longer."""
    lengths = [
        node.end_lineno - node.lineno + 1
        for path in (checkout / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]
    assert sorted(lengths)[int(len(lengths) * 0.95)] <= MAX_FUNCTION_LINES


def test_no_blanket_silence(checkout: Path) -> None:
    """A switched-off rule names itself, and a test that is skipped tests nothing."""
    pattern = re.compile(r"#\s*noqa\s*$|type:\s*ignore\s*$|pytest\.mark\.skip|pytest\.skip\(")
    found = [
        f"{path}:{number}"
        for path in modules(checkout)
        if path.name != Path(__file__).name
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("name", ["up", ".ci/run", "scripts/install", "scripts/lock.sh"])
def test_programs_are_executable(checkout: Path, name: str) -> None:
    assert (checkout / name).stat().st_mode & stat.S_IXUSR


def test_the_heavy_parts_stay_out_of_the_processes_that_do_not_need_them(checkout: Path) -> None:
    """numba and the engines come with extras: only proof of space, engines and optional devices may need them."""
    extras = {"numba", "numpy", "llvmlite", "xllamacpp", "pyopencl"}
    allowed = {"pos", "engines", "recompute", "devices"}
    offending = [
        f"{path.relative_to(checkout)} imports {name}"
        for path in (checkout / "src" / "gpupool").rglob("*.py")
        if path.relative_to(checkout / "src" / "gpupool").parts[0] not in allowed
        for name in imported(path)
        if name.split(".")[0] in extras or name.startswith("gpupool.pos")
    ]
    assert offending == []


def imported(path: Path) -> set[str]:
    """The modules that a file imports when it is itself imported (not those inside its functions)."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names
