"""What a published model says about its use: the pooler, its options and weights, and the encoder's options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from retrievalkit import artifacts
from retrievalkit.errors import ArtifactError, OptionError, UnsupportedError
from retrievalkit.model.pretrained import model_file

if TYPE_CHECKING:
    from torch import Tensor, nn

DO = "Download the model again."
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class OwnSettings:
    """What a model says about its use.

    Attributes:
        pooler: Registered name of the pooler.
        pooler_options: Its options.
        encoder_options: Options of the encoder `transformer`: how titles are joined, and prefixes and lengths where the
            model sets them.
        weights: Reads the pooler's weights, by their names in the pooler; None for a pooler without any.
        source: The file that says so.
    """

    pooler: str
    pooler_options: Mapping[str, Any]
    encoder_options: Mapping[str, Any]
    weights: Callable[[], Mapping[str, Tensor]] | None = field(default=None, compare=False)
    source: str = "modules.json"


class WithoutEquivalentError(UnsupportedError):
    """A model has a part that cannot be read."""

    def __init__(self, problem: str) -> None:
        do = "Name a pooler to do without the model's own settings, such as --pooler mean --set pooler.normalize=true."
        super().__init__(f"{problem}. {do}")
        self.problem = problem


@dataclass(frozen=True)
class PublishedFiles:
    """The files of a model, and complaints that name it.

    Attributes:
        model: As the user named it.
        source: Folder or hub name.
        revision: Branch, tag or commit of a model on the hub.
        library: Whose model it is, such as "a sentence-transformers model".
    """

    model: str
    source: str
    revision: str | None
    library: str = "a sentence-transformers model"

    def read(self, name: str, form: type) -> Any:
        """A JSON file in the form that it should have; None if there is no such file."""
        path = self.path(name)
        if path is None:
            return None
        value = artifacts.read_json(path, do=DO)
        artifacts.check_document(value, form, file=path, do=DO)
        return value

    def path(self, name: str) -> Path | None:
        """A file; None if there is no such file."""
        return model_file(self.source, name, revision=self.revision)

    def tensors(self, folder: str, names: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Tensors of the weights in a folder of the model, "" being the model's own, in float32.

        Args:
            folder: The folder inside the model.
            names: The tensors to read, and the shapes that they should have.

        Raises:
            ArtifactError: There are no such weights, or they have other shapes.
        """
        found = (self.path("/".join(filter(None, (folder, name)))) for name in _WEIGHTS)
        path = next(filter(None, found), None)
        if path is None:
            msg = f"the model '{self.model}' lacks the weights '{folder}/{_WEIGHTS[0]}', which it names. {DO}"
            raise ArtifactError(msg)
        tensors = _read(path)
        for name, shape in names.items():
            if name not in tensors or tuple(tensors[name].shape) != shape:
                has = f"has the shape {tuple(tensors[name].shape)}" if name in tensors else "is missing"
                msg = f"'{path}' is damaged: '{name}' {has}, and should have {shape}. {DO}"
                raise ArtifactError(msg)
        return {name: tensors[name].float() for name in names}

    def refuse(self, problem: str) -> NoReturn:
        """Say what of the model has no equivalent here.

        Raises:
            WithoutEquivalentError: Always.
        """
        msg = f"the model '{self.model}' is {self.library} with {problem}, which has no equivalent here"
        raise WithoutEquivalentError(msg)


def _read(path: Path) -> Mapping[str, Tensor]:
    """All tensors of a file of weights; nothing but tensors is ever unpickled."""
    import torch
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            loaded: Mapping[str, Tensor] = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch may raise anything at bytes that are not a pickle of tensors
        msg = f"cannot read the weights '{path}' ({' '.join(str(error).split())[:160]}). {DO}"
        raise ArtifactError(msg) from error
    return loaded


def load_own_weights(own: OwnSettings | None, pooler: nn.Module, *, named: bool) -> None:
    """Give a pooler the weights that its model brings; without any, nothing is changed.

    Args:
        own: What the model says about its use.
        pooler: The pooler.
        named: Whether the user named it, who may want another size than the model's: then such weights are left out.

    Raises:
        OptionError: Options of the model's own pooler give it another size.
        ArtifactError: The weights are damaged.
    """
    if own is None or own.weights is None:
        return
    weights, state = own.weights(), pooler.state_dict()
    if {name: one.shape for name, one in weights.items()} == {name: one.shape for name, one in state.items()}:
        pooler.load_state_dict(weights)
    elif not named:
        options = ", ".join(f"{name}={value}" for name, value in own.pooler_options.items())
        msg = f"the options given for the pooler do not fit the weights that the model brings. Its own are {options}."
        raise OptionError(msg)
