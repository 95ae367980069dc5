"""Write the reference page of settings from the settings classes themselves, so that the two can't differ.

Run `python scripts/generate_settings_page.py` after a change of a setting; a test compares the page with it.
"""

import ast
import inspect
import itertools
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from gpupool.agent.settings import AgentSettings
from gpupool.control.settings import ControlSettings
from gpupool.core.settings import ProcessSettings
from gpupool.gateway.settings import GatewaySettings
from gpupool.market.settings import MarketSettings
from gpupool.recompute.server.settings import RecomputeServerSettings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "settings.md"
SECTIONS: dict[str, type[ProcessSettings]] = {
    "Every process": ProcessSettings,
    "Control": ControlSettings,
    "Agent": AgentSettings,
    "Gateway": GatewaySettings,
    "Market": MarketSettings,
    "Recompute server": RecomputeServerSettings,
}
COMMANDS = {
    "GPUPOOL_HOME": "State folder that commands look into and `up` starts from; `./up` makes `.gpupool` beside it.",
    "GPUPOOL_CONTROL_URL": "Address of control; left out, the one that runs from the state folder.",
    "GPUPOOL_TOKEN": "Operator token; left out, `keys/operator.token` of the state folder.",
    "GPUPOOL_PYTHON": "The Python that `./up` makes its environment with; left out, the first fitting one.",
    "GPUPOOL_CLIENT_TLS": "`1`: hosts of `CHIAPOS_RECOMPUTE_HOST` are asked over TLS. `sha256:HEX`: so they are, and only"
    " the certificate with this fingerprint counts, for `https` hosts of commands too.",
    "GPUPOOL_CLIENT_TLS_CA": "Authority (PEM) that recompute servers and proxies are checked against; left out, this"
    " machine's.",
    "GPUPOOL_CLIENT_TLS_CERT": "Certificate (PEM) that recompute clients show.",
    "GPUPOOL_CLIENT_TLS_KEY": "Key of that certificate (PEM), mode 0600.",
    "GPUPOOL_CLIENT_TOKEN_FILE": "File whose first line is the token of recompute clients, mode 0600.",
}
_SIGNS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}


def documented(kind: type[ProcessSettings]) -> dict[str, str]:
    """Return the docstring below each field of a class, on one line, by the field's name."""
    (node,) = (one for one in ast.parse(inspect.getsource(kind)).body if isinstance(one, ast.ClassDef))
    found = {}
    for field, text in itertools.pairwise(node.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(told))):
                found[name] = " ".join(told.split())
    return found


def page() -> str:
    """Return the page as Markdown."""
    lines = [
        "# Settings",
        "",
        "A setting is an option of the command that starts the process, or an environment variable; the option wins.",
        "Workloads get none of these variables.",
        "",
        "<!-- Made by scripts/generate_settings_page.py; edits here are lost. -->",
        "",
    ]
    for title, kind in SECTIONS.items():
        lines += [
            f"## {title}",
            "",
            "| variable | default | accepted | meaning |",
            "| --- | --- | --- | --- |",
        ]
        lines += [_row(name, kind.model_fields[name], text) for name, text in documented(kind).items()]
        lines.append("")
    lines += ["## Commands", "", "| variable | meaning |", "| --- | --- |"]
    lines += [f"| `{name}` | {text} |" for name, text in COMMANDS.items()]
    return "\n".join([*lines, ""])


def _row(name: str, field: FieldInfo, text: str) -> str:
    cells = (f"`GPUPOOL_{name.upper()}`", _default(field), _accepted(field), text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None or field.default in {None, ""}:
        return "-"
    return f"`{field.default}`"


def _accepted(field: FieldInfo) -> str:
    limits = [
        f"{sign} {_bound(item)}"
        for item in field.metadata
        for kind, sign in _SIGNS.items()
        if type(item) is kind
    ]
    if limits:
        return ", ".join(limits)
    choices = getattr(field.annotation, "__args__", ())
    texts = [f"`{choice}`" for choice in choices if isinstance(choice, str)]
    return ", ".join(texts) or _kind(field.annotation)


def _bound(item: Any) -> str:
    value = next(getattr(item, name) for name in ("ge", "gt", "le", "lt") if hasattr(item, name))
    return f"{value:,}"


def _kind(annotation: Any) -> str:
    text = str(getattr(annotation, "__args__", (annotation,))[0])
    names = {"Path": "a path", "bool": "`true`, `false`", "float": "a number", "int": "a whole number"}
    return next((told for name, told in names.items() if name in text), "text")


if __name__ == "__main__":
    PAGE.write_text(page())
