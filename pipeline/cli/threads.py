"""How the threads that compute one product wait for each other."""

from __future__ import annotations

import os

SPINS = 2000
"""Rounds that a thread of GNU OpenMP waits busily at a barrier before it sleeps, a few microseconds.

Its own default is 300,000, about a millisecond. A decode has hundreds of barriers, and where another process wants a
core the thread that everybody waits for doesn't run while the others burn what is left of the machine: with 2 threads
on 2 busy cores a step took 1,298 ms with the default and 79 ms with this.
"""


def wait_briefly() -> None:
    """Sets ``GOMP_SPINCOUNT`` for this process and its children, unless the environment says how threads wait.

    To be called before torch is imported: OpenMP reads it when it is loaded.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))
