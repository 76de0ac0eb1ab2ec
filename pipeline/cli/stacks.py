"""What a part was doing when it did not end: the one thing one wants to know of a hang."""

from __future__ import annotations

import faulthandler
import signal
from typing import Final

STACKS_SIGNAL: Final = getattr(signal, "SIGUSR1", None)
"""Has a part say where each of its threads is; None on systems without such a signal."""


def tell_stacks_on_signal() -> None:
    """From now on ``STACKS_SIGNAL`` writes the stacks of all threads to stderr: files, lines and names, no values.

    It is written by the signal's handler in C, so also while the interpreter's lock is held by a thread that hangs.
    """
    if STACKS_SIGNAL is not None:
        faulthandler.register(STACKS_SIGNAL, all_threads=True)
