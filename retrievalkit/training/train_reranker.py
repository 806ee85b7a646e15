"""`rkit rerank train`: trains a cross-encoder re-ranker from a pretrained encoder, on examples.

    rkit rerank train --model bert-base-uncased --corpus CORPUS --examples TRAIN --output DIR [--dev DEV]

The examples are in the format of `rkit train`, with hard negatives. `--resume` continues an interrupted training;
torchrun starts several processes. The output is an ordinary Hugging Face folder.
"""

from __future__ import annotations

from functools import partial

from retrievalkit.contracts.declarations import command
from retrievalkit.registry.modules import large_imports
from retrievalkit.reporting.terminal import counted
from retrievalkit.storage import Folder
from retrievalkit.training.options import TrainRerankerOptions


@command("rerank train", TrainRerankerOptions)
def train_reranker(options: TrainRerankerOptions) -> Folder:
    """Train a cross-encoder on examples, and write its folder.

    Several GPUs share a training: torchrun --nproc-per-node 2 --no-python rkit rerank train ...
    """
    with large_imports():
        from retrievalkit.training.reranker import RerankerTraining
        from retrievalkit.training.selection import dev_summary
        from retrievalkit.training.session import run_training

    manifest = run_training(partial(RerankerTraining, options), options)
    counts = manifest["counts"]
    dropped = f", {counts['without_negatives']:,} without negatives dropped" if counts["without_negatives"] else ""
    read, steps = counted(counts["examples"], "examples"), counted(counts["steps"], "steps")
    summary = f"{options.output}: trained on {read} in {steps}{dropped}"
    return Folder(options.output, manifest, "; ".join(filter(None, (summary, dev_summary(manifest)))))
