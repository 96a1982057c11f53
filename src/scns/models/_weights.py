"""Published or own weights into a network; nothing of the file is ever executed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from scns.errors import InputError
from scns.models._hooks import HookedNetwork
from scns.models._network import Network

AnyNetwork = TypeVar("AnyNetwork", Network, HookedNetwork)

_PUBLISHED = (
    (r"^module\.", ""),  # saved from under a parallel wrapper
    (r"(\.denselayer\d+\.(?:norm|conv))\.([12])\.", r"\1\2."),  # the DenseNet files torchvision publishes
    (r"^(block\d)\.layer\.", r"\1."),  # the next four: CIFAR teachers of RepDistiller and mdistiller
    (r"\.convShortcut\.", ".shortcut."),
    (r"^(layer\d\.\d+)\.shortcut\.", r"\1.downsample."),
    (r"^linear\.", "fc."),
)
_SHOWN = 4  # keys a message names; the rest are counted


class OtherClassesError(InputError):
    """Weights that fit but for their classifier: it is for `found` classes, where `wanted` are."""

    def __init__(self, sentence: str, found: int, wanted: int) -> None:
        super().__init__(sentence)
        self.found, self.wanted = found, wanted


def load_weights(network: AnyNetwork, path: str | Path, *, new_classifier: bool = False) -> AnyNetwork:
    """The network, with the weights of a safetensors file or of a state dict that `torch.save` wrote.

    With `new_classifier` the network keeps its own classifier whatever the file has, for a file of other classes.
    """
    if not hasattr(network, "head_name"):
        raise InputError(
            f"load_weights takes a network of scns, not a {type(network).__name__}; wrap it by "
            "scns.features_of(module, layers=[])."
        )
    _put(network, _named(network, path), path, new_classifier)
    return network


def start_from(network: AnyNetwork, path: str | Path) -> str:
    """Put the weights of a file into the network and say which: a classifier of other classes is left out."""
    if not Path(path).is_file():
        raise InputError(f"weights={path} is no file; give a .safetensors, .pth or .pt file of the network's weights.")
    found, head = _named(network, path), f"{network.head_name}.weight"
    own = network.state_dict()
    other = head in found and found[head].shape[1:] == own[head].shape[1:] and len(found[head]) != len(own[head])
    _put(network, found, path, new_classifier=other)
    return f"{Path(path).name} without its classifier for {len(found[head])} classes" if other else Path(path).name


def _named(network: AnyNetwork, path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file by our names."""
    own = network.state_dict()
    return {key if key in own else published_key(key): value for key, value in _read(Path(path)).items()}


def _put(network: AnyNetwork, found: dict[str, Tensor], path: str | Path, new_classifier: bool) -> None:
    own = network.state_dict()
    if new_classifier:
        head = f"{network.head_name}."
        found = {key: value for key, value in found.items() if not key.startswith(head)}
        found.update({key: value for key, value in own.items() if key.startswith(head)})
    for key in own:
        if key.endswith("num_batches_tracked"):  # files older than torch 0.4.1 have no such counters
            found.setdefault(key, own[key])
    _check(own, found, network.head_name, path)
    network.load_state_dict(found)


def published_key(key: str) -> str:
    """Our name of the parameter that a published file calls `key`."""
    for pattern, ours in _PUBLISHED:
        key = re.sub(pattern, ours, key)
    return key


def _read(path: Path) -> dict[str, Tensor]:
    with open(path, "rb") as file:  # a path that cannot be opened is an OSError here, a damaged file is not
        try:
            if path.suffix == ".safetensors":
                return load_file(path)
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # the readers end in any exception, by what is damaged
            damaged = isinstance(error, SafetensorError)
            reason = f"cut short or damaged: {error}" if damaged else type(error).__name__
            raise InputError(
                f"'{path}' cannot be read as weights ({reason}); give a .safetensors file or a saved state dict of "
                "plain tensors."
            ) from error
    for wrapping in ("state_dict", "model"):  # how training scripts name it beside the epoch and the optimiser
        if isinstance(state, Mapping) and isinstance(state.get(wrapping), Mapping):
            state = state[wrapping]
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"'{path}' holds a {type(state).__name__} that is no state dict; save network.state_dict().")
    return dict(state)


def _check(own: Mapping[str, Tensor], found: Mapping[str, Tensor], head: str, path: Any) -> None:
    """Refuse a file of another network, naming what differs."""
    wrong = [
        f"{key} is {list(found[key].shape)} instead of {list(own[key].shape)}"
        for key in own
        if key in found and found[key].shape != own[key].shape
    ]
    if wrong and all(entry.startswith(f"{head}.") for entry in wrong) and own.keys() == found.keys():
        key = wrong[0].split()[0]
        raise OtherClassesError(
            f"'{path}' has a classifier for another number of classes ({wrong[0]}); "
            "use new_classifier=True to start a new one.",
            len(found[key]),
            len(own[key]),
        )
    problems = {
        "missing": [key for key in own if key not in found],
        "unexpected": [key for key in found if key not in own],
        "of another shape": wrong,
    }
    told = [f"{kind}: {_some(keys)}" for kind, keys in problems.items() if keys]
    if told:
        raise InputError(
            f"'{path}' does not fit this network ({'; '.join(told)}); build the network it was saved from."
        )


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(keys[:_SHOWN]) + more
