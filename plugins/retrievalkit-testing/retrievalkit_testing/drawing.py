"""Drawn values: hypothesis draws sizes and settings, and reduces those with which a component fails to the smallest."""

from __future__ import annotations

import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import HealthCheck, Phase, configuration, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from retrievalkit.data.records import id_problem
from retrievalkit.errors import UnsupportedError

Drawn = Mapping[str, Any]
Draws = Mapping[str, st.SearchStrategy[Any]]
"""Name of a value -> the strategy that draws it."""

EXAMPLES, LEAST = 16, 6
"""Number of drawn values for each property, and for each of its cases."""
_REDUCING = 2.0
"""Seconds to look for a smaller failing example."""

SEEDS = st.integers(0, 99)
IDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=40).filter(
    lambda text: id_problem(text) is None
)
"""Ids of any script, such as a store or a query language may misread."""


def sizes(least: int, most: int) -> st.SearchStrategy[int]:
    """Sizes between two, often the largest, or at a power of two: thresholds in code are there."""
    powers = {2**power + offset for power in range(most.bit_length()) for offset in (-1, 0, 1)}
    edges = sorted(one for one in powers | {least, most} if least <= one <= most)
    return st.one_of(st.sampled_from(edges), st.just(most), st.integers(least, most))


def for_all(draws: Draws, check: Callable[[Drawn], object], *, name: str, examples: int) -> None:
    """Check drawn values, and raise what the smallest that fail raise, with these as its attribute `drawn`.

    Args:
        draws: The strategies.
        check: Raises if the values are wrong, UnsupportedError if it is not applicable to them.
        name: The same values are drawn for the same name.
        examples: How many values to draw.

    Raises:
        UnsupportedError: The property is applicable to none of the values.
        Exception: What the check raises.
    """
    failures: list[Exception] = []
    reasons: list[UnsupportedError] = []
    checked, start = 0, 0.0

    @seed(zlib.crc32(name.encode()))
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(st.fixed_dictionaries(dict(draws)))
    def run(drawn: Drawn) -> None:
        nonlocal checked, start
        if failures and (time.monotonic() - start > _REDUCING or isinstance(failures[-1], TimeoutError)):
            return
        try:
            check(drawn)
        except UnsupportedError as error:
            reasons.append(error)
        except Exception as error:
            start = start or time.monotonic()
            error.drawn = ", ".join(f"{name}={value}" for name, value in drawn.items())  # type: ignore[attr-defined]
            failures.append(error)
            raise
        else:
            checked += 1

    # Hypothesis keeps tables of characters in its folder.
    configuration.set_hypothesis_home_dir(tempfile.gettempdir() + "/hypothesis")
    try:
        run()
    except HypothesisException:
        if not failures:
            raise
    except Exception:  # noqa: BLE001 - raised below, from the smallest example
        pass
    finally:
        configuration.set_hypothesis_home_dir(None)
    if failures:
        raise failures[-1]
    if reasons and not checked:
        raise reasons[0]
