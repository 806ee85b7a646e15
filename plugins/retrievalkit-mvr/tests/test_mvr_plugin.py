"""What the plugin registers, that looking at it imports nothing heavy, and that wrong options are refused."""

from __future__ import annotations

import pytest

from retrievalkit import registry
from retrievalkit.errors import OptionError, UnsupportedError


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"viewers": 0}, OptionError, "'viewers' of pooler 'viewers' cannot be 0"),
        ({"viewers": "many"}, OptionError, "'many'"),
        ({"source": "old"}, OptionError, "'old'"),
        ({"standard_deviation": 0}, OptionError, "'standard_deviation' .* cannot be 0"),
        ({"standard_deviation": 1, "source": "unused"}, OptionError, r"standard_deviation=1.0 would have no effect"),
        ({"position": -1}, OptionError, "'position' .* cannot be -1"),
        ({"layers": "2,9"}, UnsupportedError, "layer 9 .* 0 .embeddings. to 4"),
        ({"layers": "4,-1"}, OptionError, "layers=4,-1 names one layer twice"),
        ({"layers": ""}, OptionError, "names no layer"),
        ({"layers": "2,4", "keep": "last"}, OptionError, "viewers=8 .* Set viewers=1, or keep=all"),
        ({"layers": "2,1", "keep": "last", "viewers": 1}, UnsupportedError, r"last layer \(4\)"),
        ({"keep": "first"}, OptionError, "'first'"),
        ({"viewer": 3}, OptionError, "did you mean 'viewers'"),
    ],
)
def test_wrong_pooler_options(options, error, message, info):
    """What cannot be is refused when the pooler is made, with the value and what to set."""
    with pytest.raises(error, match=message):
        registry.create("pooler", "viewers", info, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_weight": -0.1}, "'local_weight' of loss 'global_local' cannot be -0.1"),
        ({"annealing": -1}, "'annealing' .* cannot be -1"),
        ({"floor": 0}, "'floor' .* cannot be 0"),
        ({"floor": 1.5}, "'floor' .* cannot be 1.5"),
        ({"temperature": 0}, "'temperature' .* cannot be 0"),
        ({"temperature": 0.5, "annealing": 0.3}, "annealing=0.3 and floor=0.3 would have no effect"),
        ({"temperature": 0.5, "floor": 0.1}, "floor=0.1 would have no effect"),
        ({"weight": 1}, "did you mean 'local_weight'"),
    ],
)
def test_wrong_loss_options(options, message):
    """Values that make no loss are refused by name, and options that would have no effect."""
    with pytest.raises(OptionError, match=message):
        registry.create("loss", "global_local", **options)
