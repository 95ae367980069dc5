"""The YAML of a spec as text: read strictly, with the place of every value at hand for whoever finds a fault in it.

YAML turns ``60`` into a number and ``3.10`` into 3.1. Where a spec takes texts, what stands in the file is what counts,
so `SpecText.value` has numbers there as they were written.
"""

from dataclasses import dataclass
from typing import Any, Final

import yaml

from gpupool.core.errors import InvalidInputError, TooLargeError

MAX_SPEC_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 8
"""Levels of lists and mappings in a spec; a spec needs three."""
_NUMBERS: Final = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}
_WORDS: Final = {
    "mapping values are not allowed here": 'a colon too much here; a text with ": " in it needs quotes around it',
    "could not find expected ':'": 'a field is written as "name: value", and the colon is missing',
    "expected <block end>, but found '<block mapping start>'": "this line is indented more than its neighbours",
    "expected <block end>, but found '<block sequence start>'": "this line is indented unlike its neighbours",
    "but found another document": "a second document begins here; one file holds one workload",
    "found character '\\t' that cannot start any token": "a tab stands here; YAML indents with spaces",
    "found unexpected end of stream": "a quote that was opened is not closed",
    "expected ',' or ']', but got '<stream end>'": "a list that was opened with [ is not closed with ]",
    "expected ',' or '}', but got '<stream end>'": "a mapping that was opened with { is not closed with }",
}
"""What PyYAML says of the mistakes that people make, in words for who does not know its parser."""


class MalformedSpecError(InvalidInputError):
    """The workload spec is not valid."""

    code = "malformed_spec"
    default_remedy = "Correct the file and deploy again; nothing was changed."


@dataclass(frozen=True, slots=True)
class SpecText:
    """A mapping read from YAML."""

    source: str
    """What the text is called in messages."""
    node: yaml.MappingNode
    value: dict[Any, Any]

    def at(self, *path: int | str) -> str:
        """Return ``source:line:column`` of the deepest value that ``path`` reaches."""
        node: Any = self.node
        for part in path:
            inner = _step(node, part)
            if inner is None:
                break
            node = inner
        return _at(self.source, node.start_mark)


def read_text(text: str, source: str, texts: frozenset[str]) -> SpecText:
    """Return the mapping in ``text``; raise MalformedSpecError with the place of the first fault, or TooLargeError.

    ``texts``: the fields that hold texts, in a list or in a mapping.
    """
    if len(text.encode()) > MAX_SPEC_BYTES:
        raise TooLargeError(f"{source} is larger than {MAX_SPEC_BYTES} bytes.")
    try:
        _check_form(text, source)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        said = error.problem or error.context or "not YAML"
        words = _WORDS.get(said, f"not YAML that can be read ({said})")
        raise MalformedSpecError(
            f"{_at(source, error.problem_mark or error.context_mark)}: {words}."
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise MalformedSpecError(f"{source}: not YAML ({type(error).__name__}).") from error
    _check_keys(node, source)
    if not isinstance(node, yaml.MappingNode) or not isinstance(value, dict):
        raise MalformedSpecError(
            f'{source}:1:1: a spec is written in lines of "field: value", such as "name: my-app".'
        )
    for key, inner in node.value:
        if key.value in texts:
            value[key.value] = _as_written(inner, value[key.value])
    return SpecText(source, node, value)


def _as_written(node: Any, value: Any) -> Any:
    """Return a list or mapping with the numbers in it as the texts that stand in the file."""
    if isinstance(node, yaml.SequenceNode) and isinstance(value, list):
        return [_scalar(item, old) for item, old in zip(node.value, value, strict=True)]
    if isinstance(node, yaml.MappingNode) and isinstance(value, dict):
        written = {key.value: _scalar(item, value.get(key.value)) for key, item in node.value}
        return {**value, **{key: text for key, text in written.items() if key in value}}
    return value


def _scalar(node: Any, value: Any) -> Any:
    return node.value if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS else value


def _at(source: str, mark: Any) -> str:
    """Return ``source:line:column`` of a mark in the text, or the source alone where there is none."""
    return f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source


def _check_form(text: str, source: str) -> None:
    """Raise MalformedSpecError for what only serves to exhaust or mislead a reader: deep nesting, aliases, and tags."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise MalformedSpecError(f"{_at(source, event.start_mark)}: a spec has no aliases (*name).")
        if getattr(event, "tag", None) is not None:
            raise MalformedSpecError(f"{_at(source, event.start_mark)}: a spec has no tags (!name).")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise MalformedSpecError(
                f"{_at(source, event.start_mark)}: nested deeper than {MAX_DEPTH} levels."
            )


def _check_keys(node: Any, source: str) -> None:
    """Raise MalformedSpecError where a mapping has a key twice: only one of its values could count."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value in seen:
            raise MalformedSpecError(
                f"{_at(source, key.start_mark)}: the field {key.value[:100]} stands here a second time."
            )
        seen.add(getattr(key, "value", None) if isinstance(key, yaml.ScalarNode) else None)
        _check_keys(value, source)


def _step(node: Any, part: int | str) -> Any | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if getattr(key, "value", None) == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part]
    return None
