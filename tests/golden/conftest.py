"""Golden tests: one torch thread, and a count of what was compared."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import GOLDEN
from tests.golden.harness import COMPARED

TIES_PER_TOKEN = 1 / 1000
"""More ties than this would mean that a real difference hides behind them."""


@pytest.fixture(scope="package", autouse=True)
def one_torch_thread():
    """Layers this small lose more in waiting for a second thread than they win by it, most of all on busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def ties_are_few():
    """After the last test: DESIGN 3.6 has ties counted."""
    yield
    assert COMPARED.ties <= max(2, COMPARED.tokens * TIES_PER_TOKEN), COMPARED


@pytest.hookimpl
def pytest_sessionfinish(session: pytest.Session) -> None:
    """For the summary in tests/conftest.py: with pytest-xdist the count lies in several processes."""
    output = getattr(session.config, "workeroutput", None)
    target = output if output is not None else session.config.stash.setdefault(GOLDEN, {})
    target["golden"] = (COMPARED.tokens, COMPARED.ties)
