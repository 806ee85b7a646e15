"""What the tests of trainings share: several processes that train together."""

from __future__ import annotations

import pytest
import torch

from killed_processes import start


@pytest.fixture
def together(tmp_path_factory):
    """Runs a function in several processes; returns what it returned in each."""

    def together(function, count=2):
        folder = tmp_path_factory.mktemp("processes")
        started = start(function, folder, count)
        for one in started:
            one.join(timeout=300)
        assert [one.exitcode for one in started] == [0] * count
        return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]

    return together
