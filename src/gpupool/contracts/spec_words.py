"""What is wrong with a field of a spec, for a person who knows the field and not the library that checks it."""

from typing import TYPE_CHECKING, Final

from gpupool.contracts.problems import words_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SHORT_REF: Final = (
    'is no short ref of a GPU model, such as "4090" or a6000; `gpupool gpu catalog` lists the short refs'
)
_BY_FIELD: Final = {
    ("name", "string_pattern_mismatch"): (
        "takes 1 to 63 lower-case letters, digits and hyphens, with a letter or digit at both ends"
    ),
    ("include", "string_pattern_mismatch"): _SHORT_REF,
    ("exclude", "string_pattern_mismatch"): _SHORT_REF,
    ("include", "list_type"): 'takes a list, such as ["4090", a6000]',
    ("exclude", "list_type"): 'takes a list, such as ["4090", a6000]',
    ("command", "list_type"): 'takes a list of words, such as [sleep, "60"]',
    ("command", "string_pattern_mismatch"): "holds a NUL character",
    ("models", "list_type"): "takes a list, such as [my-model]",
    ("models", "string_pattern_mismatch"): (
        "takes 1 to 200 letters, digits and . _ : / @ + -, beginning with a letter or digit"
    ),
    ("env", "dict_type"): 'takes a mapping, such as {MY_SETTING: "1"}',
    ("health", "string_pattern_mismatch"): "takes a path that begins with / and has no blanks",
}


def spec_words(fault: "ErrorDetails") -> str:
    """Return what is wrong, without echoing the input."""
    field = str(fault["loc"][0]) if fault["loc"] else ""
    if field == "env" and fault["type"] == "string_pattern_mismatch":
        if fault["loc"][-1] == "[key]":
            return "is no name of a variable: letters, digits and _, not beginning with a digit"
        return "holds a NUL character"
    return _BY_FIELD.get((field, fault["type"])) or words_of(fault)
