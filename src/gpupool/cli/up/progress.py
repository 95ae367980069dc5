"""What ``up`` prints on the way: one line a step with the time since the start, on standard error or output."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console


class Progress:
    """Prints steps; with ``to_stderr`` all of them go to standard error, so that JSON can have standard output."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._to_stderr = to_stderr
        self._begun = time.monotonic()
        self._above: Console | None = None

    def say(self, text: str) -> None:
        """Print one step."""
        self.plain(f"[{time.monotonic() - self._begun:5.1f} s] {text}")

    def plain(self, text: str = "") -> None:
        """Print a line that is no step; above the moving line, while there is one."""
        if self._above is not None:
            self._above.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            typer.echo(text, err=self._to_stderr)

    def token(self, text: str) -> None:
        """Print a piece of a stream at once."""
        typer.echo(text, nl=False, err=self._to_stderr)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show ``text`` with a spinner and the time it takes while the block runs, where there is a terminal."""
        from rich.console import Console
        from rich.progress import Progress as Bars
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=self._to_stderr)
        if not console.is_terminal:
            yield
            return
        with Bars(
            SpinnerColumn(), TextColumn(text), TimeElapsedColumn(), console=console, transient=True
        ) as bars:
            bars.add_task("", total=None)
            self._above = bars.console
            try:
                yield
            finally:
                self._above = None
