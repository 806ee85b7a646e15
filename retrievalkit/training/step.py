"""What the training loop asks of a kind of training: its batches, its loss, what it saves and how it is judged.

`rkit train`, `rkit pretrain` and `rkit rerank train` differ in this object alone; the loop
(`retrievalkit.training.loop`) knows nothing of retrievers, pre-training objectives or cross-encoders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from retrievalkit.contracts import Progress

Key = tuple[int, int]
"""A sample of an epoch: (epoch, position)."""

Backward = Callable[[Tensor], None]
Log = Callable[[dict[str, float]], None]
Say = Callable[[str], None]


class Inputs(Protocol):
    """What a step computes on, made on the CPU."""

    @property
    def texts(self) -> int:
        """How many texts the whole step has, of all processes."""

    def to(self, device: torch.device, /) -> Self:
        """The same inputs on another device."""


class Samples(Protocol):
    """The samples of an epoch and their order, which depends on the seed and the epoch alone."""

    def __len__(self) -> int: ...

    def order(self, epoch: int) -> Sequence[int]:
        """The positions of all samples in the order of an epoch."""


StepInputs = TypeVar("StepInputs", bound=Inputs)


class TrainingStep(ABC, Generic[StepInputs]):
    """One kind of training.

    Attributes:
        module: Everything that is trained, on the device that trains it.
        samples: What an epoch consists of; available once `open` was called.
        dev: The dev questions by which the best state is selected, or None to keep the last.
    """

    title: ClassVar[str] = "training"
    """Shown in front of the progress bar."""

    work: ClassVar[str | None] = None
    """Name of a folder that `open` writes and a resumed training reuses; removed at the end."""

    sharded: bool = False
    """Whether the processes divide the weights of the module among them."""

    module: nn.Module
    samples: Samples
    dev: object = None

    def rehearse(self) -> None:
        """Refuse, before anything is written, what would fail in the first step.

        Raises:
            InputError: Says what does not fit.
        """

    def shard(self) -> None:
        """Divide the weights among the processes. Called if `sharded`, before the first step."""
        raise NotImplementedError

    def open(self, folder: Path) -> None:
        """Prepare what the first step needs in the folder that is trained in."""

    @abstractmethod
    def collate(self, keys: Sequence[Key]) -> StepInputs:
        """The inputs of a step, on the CPU; of several processes, each gets its share."""

    @abstractmethod
    def run(self, inputs: StepInputs, progress: Progress, backward: Backward) -> dict[str, Tensor]:
        """Forward and backward of one step.

        Args:
            inputs: From `collate`, on the device of the module.
            progress: Where training is.
            backward: Back-propagates a loss, scaled if the precision requires it.

        Returns:
            What is logged, "loss" last: the values of the whole step, equal in all processes. The gradients of the
            processes add up to that of the whole step.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what was trained."""

    @property
    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Counts for the manifest, such as {"examples": 1000}."""

    def measure(self, epoch: int) -> tuple[str, float]:
        """The dev measure after an epoch and its value; lower is better. Called only if `dev` is given."""
        raise NotImplementedError

    def end_epoch(self, epoch: int, folder: Path, log: Log, say: Say) -> None:
        """Called in all processes when an epoch is done and another step follows, before the state is saved."""

    def restore(self, epochs: int, folder: Path) -> None:
        """Bring back what `end_epoch` changed in a training that is resumed after so many whole epochs."""


def to_device(batch: Any, device: torch.device) -> Any:
    """The tensors and batches of a mapping on another device."""
    return {name: value.to(device) for name, value in batch.items()}
