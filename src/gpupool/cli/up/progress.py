"""What ``up`` prints on the way: one line a step with the time since the start, on standard error or output."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer


class Progress:
    """Prints steps; with ``quiet_stdout`` all of them go to standard error, so that JSON can have standard output."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._to_stderr = to_stderr
        self._begun = time.monotonic()

    def say(self, text: str) -> None:
        """Print one step."""
        typer.echo(f"[{time.monotonic() - self._begun:5.1f} s] {text}", err=self._to_stderr)

    def plain(self, text: str = "") -> None:
        """Print a line that is no step."""
        typer.echo(text, err=self._to_stderr)

    def token(self, text: str) -> None:
        """Print a piece of a stream at once."""
        typer.echo(text, nl=False, err=self._to_stderr)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show ``text`` with a spinner while the block runs, where there is a terminal."""
        from rich.console import Console

        console = Console(stderr=self._to_stderr)
        if not console.is_terminal:
            yield
            return
        with console.status(text):
            yield
