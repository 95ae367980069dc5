"""The flags that choose cards, held against the cards that are there.

This version computes on the CPU only. The flags of the original are still read and checked, so that a start script
keeps working and a wrong index is found today, and the server says in one line that no card is used.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpupool.core.errors import InvalidInputError
from gpupool.recompute.addresses import parse_list
from gpupool.recompute.variables import ChiaposVariables

Maker = Literal["CUDA", "OpenCL"]
_FLAGS: dict[Maker, tuple[str, str]] = {"CUDA": ("-G", "-g"), "OpenCL": ("-O", "-c")}


@dataclass(frozen=True, slots=True)
class CardChoice:
    """What was asked of one kind of card."""

    maker: Maker
    limit: int | None = None
    """Most cards to use; None means all, 0 none."""
    indexes: tuple[int, ...] = ()
    """Cards from 0; empty means all."""

    @property
    def asked(self) -> bool:
        """Tell whether anything was asked for."""
        return self.limit is not None or bool(self.indexes)

    def check(self, names: Sequence[str]) -> None:
        """Raise InvalidInputError where an index names none of the cards ``names``."""
        missing = [index for index in self.indexes if index >= len(names)]
        if not missing:
            return
        found = ", ".join(f"{index} ({name})" for index, name in enumerate(names)) or "none"
        raise InvalidInputError(
            f"There is no {self.maker} card {', '.join(map(str, missing))} on this machine; found: {found}.",
            remedy=f"Correct {_FLAGS[self.maker][1]}, leave it out, or check the driver of the card.",
        )


@dataclass(frozen=True, slots=True)
class CardChoices:
    """What was asked of cards, in all."""

    cuda: CardChoice
    opencl: CardChoice

    @classmethod
    def of(
        cls,
        variables: ChiaposVariables,
        cuda_limit: int | None,
        opencl_limit: int | None,
        cuda_indexes: Iterable[str],
        opencl_indexes: Iterable[str],
    ) -> "CardChoices":
        """Return the choices that flags (None or empty: not given) and then variables make."""
        return cls(
            CardChoice(
                "CUDA",
                variables.cuda_limit if cuda_limit is None else cuda_limit,
                parse_indexes(cuda_indexes, "-g"),
            ),
            CardChoice(
                "OpenCL",
                variables.opencl_limit if opencl_limit is None else opencl_limit,
                parse_indexes(opencl_indexes, "-c"),
            ),
        )


@dataclass(frozen=True, slots=True)
class Cards:
    """The cards of this machine, by name, in the order of their indexes."""

    cuda: tuple[str, ...] = ()
    opencl: tuple[str, ...] = ()


def parse_indexes(values: Iterable[str], flag: str) -> tuple[int, ...]:
    """Return the card indexes of ``0,1``, of an option given repeatedly, or of both, each once.

    Raises InvalidInputError that names ``flag``.
    """
    found = []
    for entry in parse_list(values):
        if not (entry.isascii() and entry.isdecimal() and len(entry) <= 3):
            raise InvalidInputError(
                f"{flag} {entry[:40]!r} is not the index of a card.",
                remedy=f"Write {flag} 0,1 or {flag} 0 {flag} 1.",
            )
        found.append(int(entry))
    return tuple(dict.fromkeys(found))


def find_cards(choices: CardChoices) -> Cards:
    """Look for cards; blocking. OpenCL drivers are loaded only where OpenCL cards are asked for."""
    from gpupool.devices.nvml import NvmlProbe

    cuda = tuple(device.name for device in NvmlProbe().devices())
    if not choices.opencl.asked or choices.opencl.limit == 0:
        return Cards(cuda)
    from gpupool.devices.opencl import OpenClProbe

    return Cards(cuda, tuple(device.name for device in OpenClProbe().devices()))


def check_cards(choices: CardChoices, cards: Cards) -> str | None:
    """Return the line that says no card is used, or None where there is none and none was asked for.

    Raises InvalidInputError where an index names no card of this machine.
    """
    choices.cuda.check(cards.cuda)
    choices.opencl.check(cards.opencl)
    flags = [
        f"{flag} {value}"
        for choice in (choices.cuda, choices.opencl)
        for flag, value in zip(
            _FLAGS[choice.maker], (choice.limit, ",".join(map(str, choice.indexes))), strict=True
        )
        if value not in {None, ""}
    ]
    wanted = [choice for choice in (choices.cuda, choices.opencl) if choice.indexes or choice.limit]
    found = [
        f"{len(names)} {maker}" for maker, names in (("CUDA", cards.cuda), ("OpenCL", cards.opencl)) if names
    ]
    if not wanted and not found:
        return None
    return (
        "GPU engines are not in this version: the CPU computes"
        f" (cards found: {', '.join(found) or 'none'}; asked for: {' '.join(flags) or 'nothing'})"
    )
