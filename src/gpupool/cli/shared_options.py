"""One definition of options that several commands take.

Typer reads a command's options from its parameters, one by one. Here a group of options is a dataclass, its fields
annotated as such parameters are, and a command takes the group as one parameter.
"""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

Command = Callable[..., None]


def takes_groups(command: Command) -> Command:
    """Return the command as Typer wants it: in place of each parameter that is a dataclass, the fields of that.

    The order of the options is that of the parameters. Every parameter is given by name.
    """
    groups: dict[str, type[Any]] = {}
    parameters: list[Parameter] = []
    for name, hint in _hinted(command).items():
        if isinstance(hint.annotation, type) and is_dataclass(hint.annotation):
            groups[name] = hint.annotation
            parameters += _hinted(hint.annotation).values()
        else:
            parameters.append(hint)

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field: given.pop(field) for field in signature(group).parameters})
        command(**given)

    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__dict__["__signature__"] = Signature(parameters)
    return run


def _hinted(takes: Callable[..., object]) -> dict[str, Parameter]:
    """Return the parameters with their annotations as objects, each to be given by name."""
    hints = get_type_hints(takes, include_extras=True)
    return {
        name: parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)
        for name, parameter in signature(takes).parameters.items()
    }
