"""`rkit tune`: searches learning rate, temperature and epochs within a time budget, and writes the best checkpoint.

    rkit tune --model bert-base-uncased --corpus CORPUS --examples TRAIN --budget 20m --output DIR

All other options come from `rkit train`, and the same in each trial. `--resume` continues an interrupted search.
"""

from __future__ import annotations

from retrievalkit.contracts.declarations import command
from retrievalkit.models.pretrained import uploading
from retrievalkit.registry.modules import large_imports
from retrievalkit.storage import Folder
from retrievalkit.training.options import TuneOptions


@command("tune", TuneOptions)
def tune(options: TuneOptions) -> Folder:
    """Search learning rate, temperature and epochs within a time budget, and write the best checkpoint.

    Prints the trials, the untrained model first, and the rkit train command of the best trial.
    """
    with large_imports():
        from retrievalkit.training.hyperparameters import search

    with uploading(options.output, options.push):
        manifest = search(options)
    return Folder(options.output, manifest, manifest["tuning"]["summary"])
