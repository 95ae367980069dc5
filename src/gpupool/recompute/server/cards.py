"""The flags that choose cards, held against the cards that are there.

Whoever looks for cards loads drivers, and drivers crash or hang. So a process for each maker looks and answers within
a limit; where it does not, that maker has no cards today, which is said in a line, and the server starts all the same.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from gpupool.core.errors import InvalidInputError
from gpupool.devices.recovery.choosing import MAKERS, Card, Maker, Wish, choose
from gpupool.recompute.addresses import parse_list
from gpupool.recompute.variables import ChiaposVariables

LOOK_SECONDS: Final = 20.0
"""For a driver to list its cards."""
_LOOKER: Final = ("-m", "gpupool.devices.recovery.cards")
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
    def wish(self) -> Wish:
        """The same, as `choose` takes it."""
        return Wish(self.limit, self.indexes)

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
    least_log_entries: int = 21
    """Base-2 logarithm of the smallest job that goes to a card."""

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
            variables.min_gpu_log_entries,
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The cards of this machine, and which makers could not be asked."""

    cards: tuple[Card, ...] = ()
    faults: tuple[tuple[Maker, str], ...] = ()
    """Why the cards of a maker are not known."""

    def names(self, maker: Maker) -> tuple[str, ...]:
        """Return the names of one maker's cards in the order of their indexes."""
        return tuple(card.name for card in self.cards if card.maker == maker)


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


def find_cards(choices: CardChoices, look: Callable[[Maker], list[Card] | str] | None = None) -> Found:
    """Look for the cards of every maker that may be used; blocks until all have answered or their time is up.

    Drivers of a maker whose cards are not wanted stay unloaded.
    """
    wanted = [
        choice.maker for choice in (choices.cuda, choices.opencl) if choice.indexes or choice.limit != 0
    ]
    with ThreadPoolExecutor(len(MAKERS)) as pool:
        answers = dict(zip(wanted, pool.map(look or ask_driver, wanted), strict=True))
    return Found(
        tuple(card for answer in answers.values() if not isinstance(answer, str) for card in answer),
        tuple((maker, answer) for maker, answer in answers.items() if isinstance(answer, str)),
    )


def ask_driver(
    maker: Maker, looker: Sequence[str] = _LOOKER, seconds: float = LOOK_SECONDS
) -> list[Card] | str:
    """Return the cards of one maker as a process of its own finds them, or what went wrong with it."""
    command = [sys.executable, *(["-P"] if sys.flags.safe_path else []), *looker, maker]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # one that a driver holds in the kernel is left behind
            process.communicate(timeout=1.0)
        return f"its driver did not answer within {seconds:g} s"
    if process.returncode:
        ended = f"signal {-process.returncode}" if process.returncode < 0 else f"status {process.returncode}"
        return f"looking for them ended with {ended}"
    try:
        return [Card(**fields) for fields in json.loads(printed)]
    except (ValueError, TypeError):
        return "looking for them gave no list"


def use_cards(choices: CardChoices, found: Found) -> list[Card]:
    """Return the cards to compute on, each once.

    Raises InvalidInputError where an index names no card of this machine.
    """
    unknown = dict(found.faults)
    for choice in (choices.cuda, choices.opencl):
        if choice.maker not in unknown:
            choice.check(found.names(choice.maker))
    return choose(found.cards, choices.cuda.wish, choices.opencl.wish)


def notices(choices: CardChoices, found: Found) -> list[str]:
    """Return a line for each maker whose cards were asked for or should be there, and are not used."""
    lines = [f"No {maker} cards are used: {why}" for maker, why in found.faults]
    lines += _undriven(choices, found)
    for choice in (choices.cuda, choices.opencl):
        failed = choice.maker in dict(found.faults)
        if choice.limit and not choice.indexes and not failed and not found.names(choice.maker):
            lines.append(
                f"No {choice.maker} card was found, and {_FLAGS[choice.maker][0]} {choice.limit} asks for some"
            )
    return lines


def _undriven(choices: CardChoices, found: Found) -> list[str]:
    """Return a line for each card that its maker shows and cannot drive, where nobody listed it."""
    used = {card.pci_address for card in use_cards(choices, found) if card.pci_address}
    lines = []
    for card in found.cards:
        choice = choices.cuda if card.maker == "CUDA" else choices.opencl
        if card.fault is not None and choice.limit != 0 and not choice.indexes:
            instead = "is used through OpenCL" if card.pci_address in used else "is not used"
            lines.append(f"{card.name} ({card.maker} {card.index}) {instead}: {card.fault}")
    return lines
