"""What the plugin registers, that looking at it imports nothing heavy, and that wrong options are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from retrievalkit import registry
from retrievalkit.contracts import Loss, Pooler
from retrievalkit.errors import OptionError, UnsupportedError

POOLER_OPTIONS = {
    "viewers",
    "source",
    "standard_deviation",
    "position",
    "replace_first",
    "query_viewer",
    "layers",
    "keep",
    "normalize",
}


def test_everything_is_registered():
    """The pooler and the loss are found by name, brought by this distribution."""
    for kind, name, parent in [("pooler", "viewers", Pooler), ("loss", "global_local", Loss)]:
        assert registry.component(kind, name).distribution == "retrievalkit-mvr"
        assert issubclass(registry.get(kind, name), parent)


def test_the_plugin_is_cold():
    """Importing the plugin and listing names imports no torch."""
    code = (
        "import sys, retrievalkit_mvr; from retrievalkit import registry; registry.names('pooler');"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_option_is_described():
    """`rkit plugins show` has a sentence for each option."""
    pooler = registry.options(registry.get("pooler", "viewers"))
    loss = registry.options(registry.get("loss", "global_local"))
    assert set(pooler) == POOLER_OPTIONS
    assert set(loss) == {"local_weight", "annealing", "floor", "temperature"}
    assert all(option.description for option in (*pooler.values(), *loss.values()))


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
