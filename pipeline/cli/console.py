"""What commands show while they work: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Report(Protocol):
    """Tells what is being done, and how much of the whole is done (0 to 1, None: unknown)."""

    def __call__(self, text: str, done: float | None = None, /) -> None: ...


def stdout_console() -> Console:
    """For a command's own output; text is taken as it is, not as markup."""
    return Console(markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress(title: str) -> Iterator[Report]:
    """Shows a bar on stderr for as long as the block takes; gone afterwards. Elsewhere each new step is one line."""
    console = Console(stderr=True, markup=False, highlight=False)
    if not console.is_terminal:
        last = ""

        def say(text: str, done: float | None = None, /) -> None:
            nonlocal last
            if text != last:
                last = text
                console.print(f"{title}: {text}", soft_wrap=True)

        yield say
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def show(text: str, done: float | None = None, /) -> None:
            bar.update(task, description=f"{title}: {text}", total=None if done is None else 1.0, completed=done or 0.0)

        yield show
