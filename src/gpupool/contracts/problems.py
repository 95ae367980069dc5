"""Errors on the wire: problem+json (RFC 9457) with the stable code and the remedy of `gpupool.core.errors`."""

from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from gpupool.contracts.base import Message
from gpupool.core import errors

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MEDIA_TYPE: Final = "application/problem+json"


class Problem(Message):
    """The body of an error answer."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    remedy: str
    request_id: str | None = None


def problem_of(error: errors.GpupoolError, request_id: str | None = None) -> Problem:
    """Return the body that carries ``error``."""
    title = (type(error).__doc__ or error.code).strip().splitlines()[0]
    return Problem(
        title=title,
        status=error.status,
        code=error.code,
        detail=error.message,
        remedy=error.remedy,
        request_id=request_id,
    )


def _classes(root: type[errors.GpupoolError]) -> dict[str, type[errors.GpupoolError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        for code, kind in _classes(child).items():
            found.setdefault(code, kind)
    return found


def error_of(status: int, body: Any) -> errors.GpupoolError:
    """Return the error that an answer carries; one with a body that is no problem becomes a plain GpupoolError."""
    try:
        problem = Problem.model_validate(body)
    except ValidationError:
        return errors.UnavailableError(f"The server answered {status} without saying why.")
    kind = _classes(errors.GpupoolError).get(problem.code, errors.GpupoolError)
    return kind(problem.detail, remedy=problem.remedy)


def describe(error: ValidationError) -> str:
    """Return one line a fault: where it is and what is wrong, without echoing the input."""
    return "; ".join(
        f"{'.'.join(str(part) for part in fault['loc']) or 'input'}: {words_of(fault)}"
        for fault in error.errors()[:10]
    )


_WORDS: Final = {
    "extra_forbidden": "unknown field",
    "missing": "this field is needed",
    "string_type": 'takes a text; put quotes around it, such as "60"',
    "list_type": "takes a list",
    "dict_type": "takes a mapping",
    "int_type": "takes a whole number",
    "int_parsing": "takes a whole number",
    "int_from_float": "takes a whole number",
    "float_type": "takes a number",
    "float_parsing": "takes a number",
    "bool_type": "takes true or false",
    "bool_parsing": "takes true or false",
    "greater_than": "takes more than {gt:g}",
    "greater_than_equal": "takes {ge:g} or more",
    "less_than": "takes less than {lt:g}",
    "less_than_equal": "takes {le:g} or less",
    "string_too_long": "takes at most {max_length} characters",
    "string_too_short": "may not be empty",
    "too_long": "takes at most {max_length} entries",
    "literal_error": "takes {expected}",
}


_FORMS: Final = {
    "name": "takes 1 to 63 lower-case letters, digits and hyphens, with a letter or digit at both ends",
    "region": "takes 1 to 40 lower-case letters, digits, dots, hyphens and underscores, such as de-fra",
    "short_ref": "takes the short ref of a GPU model, as `gpupool gpu catalog` lists them",
    "address": "takes a host name or an IP address without a port",
}
"""What a field of that name takes, where a pattern says it to no person."""


def words_of(fault: "ErrorDetails") -> str:
    """Return what is wrong in our own words where we have some, without echoing the input."""
    if fault["type"] == "string_pattern_mismatch" and fault["loc"] and fault["loc"][-1] in _FORMS:
        return _FORMS[str(fault["loc"][-1])]
    known = _WORDS.get(fault["type"])
    if known is not None:
        return known.format(**fault.get("ctx", {}))
    return fault["msg"].removeprefix("Value error, ")
