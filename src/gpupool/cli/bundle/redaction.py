"""Removing secrets from what leaves this machine: the known ones wherever they stand, others by how they look.

Known secrets are removed in the forms in which they get into files: as they are, as JSON and as part of an address.
What only looks like a secret (a bearer token, a value named ``password``) is removed too; too much is better than
too little.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

from gpupool.core.secret_names import WORDS

REMOVED: Final = "[removed]"
SHORTEST: Final = 4
"""A shorter "secret" stands in half of all lines by chance."""
_MARK: Final = REMOVED.encode()
# No pattern may look back and forth over a whole line: some lines are a megabyte long.
_VALUE: Final = rb"(?:\"(?:[^\"\\]|\\.){1,4096}\"|'[^']{1,4096}'|(?!null\b|true\b|false\b|\"|')[^\s,;}&]+)"
_PATTERNS: Final[tuple[tuple[re.Pattern[bytes], bytes], ...]] = (
    (
        re.compile(
            rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        _MARK,
    ),
    (
        re.compile(rb"(?i)((?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)(?:[a-z]+\s+)?[^\s\"',;}]+"),
        rb"\g<1>" + _MARK,
    ),
    (re.compile(rb"(?i)\b(bearer\s+)[a-z0-9._~+/=-]{4,}"), rb"\g<1>" + _MARK),
    (re.compile(rb"(?i)\b((?:set-)?cookie[\"']?\s*[:=]\s*)[^\r\n]+"), rb"\g<1>" + _MARK),
    (
        re.compile(rb"(?i)(" + WORDS.encode() + rb"[\"']?\s*[:=]\s*)" + _VALUE),
        rb'\g<1>"' + _MARK + rb'"',
    ),
    (re.compile(rb"\b(?:sk|pk|hf|gh[opsu]|glpat|xox[abp])[-_][A-Za-z0-9_-]{12,}"), _MARK),
    (re.compile(rb"(://[^/\s:@\"']*):[^@\s/\"']+@"), rb"\g<1>:" + _MARK + rb"@"),
)
# The value of an option, after a blank or as the next item of a list; `_without_option_value` looks at what stands before.
_OPTION_VALUE: Final = re.compile(
    rb"(?i)(" + WORDS.encode() + rb"(?:\s{1,8}|[\"']\s{0,80},\s{0,80}[\"']))([^\s\"',]+)"
)
_OPTION_BEGIN: Final = re.compile(rb"--?[\w-]{0,60}\Z")


class Redactor:
    """Removes a set of known secrets, and whatever looks like one."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets if len(secret) >= SHORTEST for form in _forms(secret)}
        # The longest first, so that no part of a long one stays when a short one is a piece of it.
        self._known = sorted(forms, key=len, reverse=True)

    def clean(self, content: bytes) -> bytes:
        """Return the content without secrets."""
        for form in self._known:
            content = content.replace(form, _MARK)
        for pattern, replacement in _PATTERNS:
            content = pattern.sub(replacement, content)
        return _OPTION_VALUE.sub(_without_option_value, content)


def _without_option_value(match: re.Match[bytes]) -> bytes:
    """Return a match with its value removed, where its name ends an option such as ``--api-key``."""
    before = match.string[max(0, match.start() - 64) : match.start()]
    return match.group(1) + _MARK if _OPTION_BEGIN.search(before) else match.group()


def without_values(variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of environment variables with every value removed."""
    return dict.fromkeys(variables, REMOVED)


def _forms(secret: str) -> set[bytes]:
    plain = {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        quote(secret, safe=""),
    }
    return {form.encode(errors="surrogateescape") for form in plain}
