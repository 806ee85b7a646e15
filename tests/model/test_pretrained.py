"""transformers is quiet for a while, and then as it was."""

from __future__ import annotations

import pytest
from transformers.utils import logging

from retrievalkit.model.pretrained import quiet


@pytest.mark.parametrize("bars", [True, False])
def test_settings_come_back(bars):
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        logging.set_verbosity_info()
        (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
        with pytest.raises(RuntimeError), quiet():
            assert logging.get_verbosity() == logging.ERROR
            assert not logging.is_progress_bar_enabled()
            raise RuntimeError
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled() is bars
    finally:
        logging.set_verbosity(before[0])
        (logging.enable_progress_bar if before[1] else logging.disable_progress_bar)()
