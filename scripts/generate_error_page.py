"""Write the reference page of error codes from the error classes themselves, so that the two can't differ.

Run `python scripts/generate_error_page.py` after a change of an error; a test compares the page with it.
"""

import ast
import importlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpupool.core.errors import GpupoolError

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "gpupool"
PAGE = ROOT / "docs" / "reference" / "errors.md"
_CLASS = re.compile(r"^class \w+Error\(", re.MULTILINE)

GATEWAY_MEANINGS = {
    "empty_array": "`messages` is empty; give at least one message.",
    "invalid_api_key": "The gateway's key is missing or wrong. Send the one in `keys/gateway.token` as a bearer token.",
    "invalid_json": "The body is missing or is not JSON; the message says where.",
    "invalid_request": "The HTTP request itself is not understood.",
    "invalid_type": "A part of the body has the wrong type or length.",
    "method_not_allowed": "The path does not take this method; the `Allow` header names those it takes.",
    "missing_required_parameter": "`model` is missing.",
    "model_not_found": "No chute serves this model. `GET /v1/models` lists those there are.",
    "model_not_ready": "The model is wanted and no instance is ready; try again after `Retry-After`.",
    "not_ready": "The gateway has just started and does not know the models yet; try again in a moment.",
    "not_supported": "The model does not offer what the path stands for, such as embeddings; ask another model.",
    "request_timeout": "The body did not arrive in time.",
    "request_too_large": "The body is larger than the limit in the message.",
    "unknown_url": "There is no such path.",
    "upstream_error": "The model's server refused; its own words are in the message.",
    "upstream_failed": "The model's server broke off its answer; try again.",
    "upstream_reply_too_large": "The model's server answered with more than the limit in the message.",
    "upstream_timeout": "The model's server was silent for too long.",
    "upstream_unreachable": "No server of the model could be reached; try again after `Retry-After`.",
}
"""What each code of the gateway means; a code that is missing here, or unused there, is an error of this script."""

EXIT_CODES = {
    0: "done",
    1: "an internal fault, or a question answered with no",
    2: "the input or the command line is not valid",
    3: "this machine or its set-up does not allow it",
    4: "there is no such thing",
    5: "the present state does not allow it, or is not as wanted (`status`, `doctor`)",
    6: "not allowed",
    7: "busy",
    8: "not reachable",
    9: "not finished in time",
    130: "stopped by Ctrl-C",
}


def error_classes() -> list[type[GpupoolError]]:
    """Return every error class of the product, parents before children, in the order of their code."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if _CLASS.search(path.read_text()):
            importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
    return [kind for kind in _family(GpupoolError) if kind.__module__.startswith("gpupool.")]


def _family(root: type[GpupoolError]) -> Iterator[type[GpupoolError]]:
    yield root
    for child in sorted(root.__subclasses__(), key=lambda kind: (kind.code, kind.__name__)):
        yield from _family(child)


def meaning(kind: type[GpupoolError]) -> str:
    """Return the first line of a class's docstring, which is its default message."""
    return (kind.__doc__ or "").strip().splitlines()[0]


def gateway_codes() -> dict[str, set[str]]:
    """Return the HTTP statuses by code of every error that the gateway makes, read from its source."""
    found: dict[str, set[str]] = {}
    for path in sorted((PACKAGE / "gateway").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "GatewayError"
            ):
                status, code = node.args[:2]
                if isinstance(code, ast.Constant):
                    told = str(status.value) if isinstance(status, ast.Constant) else "as the cause"
                    found.setdefault(str(code.value), set()).add(told)
    return found


def page() -> str:
    """Return the page as Markdown."""
    classes = error_classes()
    lines = [
        "# Error codes",
        "",
        "Every fault has a code that does not change, so that scripts can match it. A command prints it as",
        "`Error [code]: what happened` with `What to do:` below it, and ends with the exit status given here. The APIs of",
        "control and of the recompute server send it as `code` of an `application/problem+json` answer with the HTTP",
        "status given here, next to `detail`, `remedy` and `request_id`, the id to search the logs for.",
        "",
        "<!-- Made by scripts/generate_error_page.py; edits here are lost. -->",
        "",
        "## Exit status of commands",
        "",
        "| status | meaning |",
        "| --- | --- |",
        *(f"| {code} | {text} |" for code, text in EXIT_CODES.items()),
        "",
    ]
    singles: list[type[GpupoolError]] = [GpupoolError]
    for top in sorted(GpupoolError.__subclasses__(), key=lambda kind: kind.code):
        family = [kind for kind in classes if issubclass(kind, top)]
        if len(family) > 1:
            lines += _group(f"`{top.code}` and its kinds", family)
        else:
            singles += family
    return "\n".join([*lines, *_group("Others", singles), *_gateway()])


def _group(title: str, members: Sequence[type[GpupoolError]]) -> list[str]:
    """Return a table; a class without a code of its own is a case of its parent's and adds its HTTP status only."""
    statuses: dict[str, dict[int, None]] = {}
    for kind in members:
        statuses.setdefault(kind.code, {})[kind.status] = None
    rows = [
        f"| `{kind.code}` | {_cell(meaning(kind))} | {_cell(kind.default_remedy)} |"
        f" {', '.join(map(str, statuses[kind.code]))} | {kind.exit_code} |"
        for kind in members
        if "code" in vars(kind)
    ]
    return [
        f"## {title}",
        "",
        "| code | meaning | what to do | HTTP | exit |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
    ]


def _gateway() -> list[str]:
    rows = [
        f"| `{code}` | {_cell(GATEWAY_MEANINGS[code])} | {', '.join(sorted(statuses))} |"
        for code, statuses in sorted(gateway_codes().items())
    ]
    return [
        "## Codes of the gateway",
        "",
        'The gateway answers in the form of the OpenAI API: `{"error": {message, type, param, code}}`.',
        "",
        "| code | meaning | HTTP |",
        "| --- | --- | --- |",
        *rows,
        "",
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
