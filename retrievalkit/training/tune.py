"""`rkit tune`: searches learning rate, temperature and epochs within a time budget, and writes the best checkpoint.

    rkit tune --model bert-base-uncased --corpus CORPUS --examples TRAIN --budget 20m --output DIR

All other options come from `rkit train`, and the same in each trial. `--resume` continues an interrupted search.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from retrievalkit.contracts.declarations import Flag, command
from retrievalkit.errors import OptionError
from retrievalkit.models.pretrained import uploading
from retrievalkit.registry.modules import large_imports
from retrievalkit.storage import Folder
from retrievalkit.training.train import TrainOptions

_SECONDS = {"s": 1, "m": 60, "h": 3600}
_Values = Annotated[Sequence[float] | None, Flag(metavar="NUMBER,...")]


@dataclass(frozen=True)
class TuneOptions(TrainOptions):
    """Options of `tune`.

    Args:
        budget: Time to search, such as 90s, 20m or 2h; afterwards no trial starts, and a running trial ends at its next
            evaluation.
        learning_rate: Learning rates to try, or a fixed rate; by default half to five times the rate of rkit train.
        temperature: Temperatures of the loss to try; by default around that of rkit train, unless --set fixes it.
        epochs: Numbers of epochs to try, or a fixed number; by default half to twice the number of rkit train.
    """

    _: KW_ONLY
    budget: Annotated[str, Flag(metavar="TIME")] = "20m"
    learning_rate: _Values = None  # type: ignore[assignment]
    temperature: _Values = None
    epochs: _Values = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?[smh]", self.budget):
            msg = f"--budget is '{self.budget}', and should be a number with s, m or h, such as 90s, 20m or 2h."
            raise OptionError(msg)
        for name in ("learning_rate", "temperature", "epochs"):
            if wrong := [value for value in getattr(self, name) or () if value <= 0]:
                msg = f"{name} has the value {wrong[0]:g}. Set values above 0."
                raise OptionError(msg)

    @property
    def seconds(self) -> float:
        """Budget in seconds."""
        return float(self.budget[:-1]) * _SECONDS[self.budget[-1]]


@command("tune", TuneOptions)
def tune(options: TuneOptions) -> Folder:
    """Search learning rate, temperature and epochs within a time budget, and write the best checkpoint.

    Prints the trials, the untrained model first, and the rkit train command of the best trial.
    """
    with large_imports():
        from retrievalkit.training.trials import search

    with uploading(options.output, options.push):
        manifest = search(options)
    return Folder(options.output, manifest, manifest["tuning"]["summary"])
