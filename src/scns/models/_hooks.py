"""Any `nn.Module` as teacher or student: forward hooks read its features, its code stays as it is."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, overload

from torch import Tensor, nn

from scns import augment
from scns.errors import InputError, unknown
from scns.features import Features


def features_of(
    module: nn.Module,
    layers: Sequence[str],
    *,
    preacts: Sequence[str] | None = None,
    embedding: str | None = None,
    classifier: str | None = None,
) -> "HookedNetwork":
    """The module, callable like a network of scns: with `features=True` it gives `Features`, else logits.

    Layers are named by their path as in `module.named_modules()`, for example "layer3.1.bn2".

    layers      their outputs are the maps: first a stem, then the stages, as in the networks of scns
    preacts     as many layers, whose outputs are the preacts. Without them the preacts are the maps themselves:
                enough for a teacher, of which methods read the sign alone, but a student that is trained by its
                preacts needs them named, because after a ReLU the negative part is lost
    embedding   the layer whose output is the embedding; without it the embedding is the classifier's input
    classifier  the layer that gives the logits; without it the last `nn.Linear`
    """
    for name, paths in {"layers": layers, "preacts": preacts}.items():
        if isinstance(paths, str):  # whose letters are no layers
            raise InputError(f"{name} is a list of paths, but it is '{paths}'; write {name}=['{paths}'].")
    if classifier is None:
        linear = [path for path, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        if not linear:
            raise InputError(
                f"{type(module).__name__} has no nn.Linear to take the embedding from; "
                "name its last layer with classifier=..."
            )
        classifier = linear[-1]
    if preacts is not None and len(preacts) != len(layers):
        raise InputError(
            f"preacts names {len(preacts)} layers and layers {len(layers)}; name one preact for each layer."
        )
    for path in (*layers, *(preacts or ()), classifier, *([] if embedding is None else [embedding])):
        _check_path(module, path)
    return HookedNetwork(module, layers, preacts, embedding, classifier)


class HookedNetwork(nn.Module):
    """What `features_of` returns. Its state dict is that of the wrapped module: each loads into the other.

    Hooks exist only while a call that asks for features runs: nothing stays behind, and logits alone cost no more.
    """

    input_size: int = 0  # pixels at which it sees images, whatever their own size; 0: as they come

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[str],
        preacts: Sequence[str] | None,
        embedding: str | None,
        classifier: str,
    ) -> None:
        super().__init__()
        self.module = module
        self.layers = tuple(layers)
        self.preacts = None if preacts is None else tuple(preacts)
        self.embedding = embedding
        self.head_name = classifier
        self._register_load_state_dict_pre_hook(_add_prefix)

    @property
    def head(self) -> nn.Module:
        """The classifier: embedding -> logits."""
        return self.module.get_submodule(self.head_name)

    @overload
    def forward(self, images: Tensor, features: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, images: Tensor, features: Literal[True]) -> Features: ...
    def forward(self, images: Tensor, features: bool = False) -> Tensor | Features:
        images = augment.resize(images, self.input_size)
        if not features:
            return _tensor(self.module(images), "The module's output")
        outputs = dict.fromkeys((*self.layers, *(self.preacts or ()), *([self.embedding] if self.embedding else [])))
        inputs = [] if self.embedding else [self.head_name]
        with _recorded(self.module, list(outputs), inputs) as seen:
            logits = _tensor(self.module(images), "The module's output")
        maps = tuple(seen(path, "output") for path in self.layers)
        preacts = maps if self.preacts is None else tuple(seen(path, "output") for path in self.preacts)
        embedding = seen(self.embedding, "output") if self.embedding else seen(self.head_name, "input")
        return Features(logits, _vectors(embedding), maps, preacts)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's state dict."""
        return self.module.state_dict(*args, **kwargs)


def _add_prefix(state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Undo `HookedNetwork.state_dict` while loading: the wrapped module is the attribute `module`."""
    for key in [key for key in state if key.startswith(prefix)]:
        state[f"{prefix}module.{key.removeprefix(prefix)}"] = state.pop(key)


Seen = Callable[[str, str], Tensor]


@contextmanager
def _recorded(module: nn.Module, outputs: Sequence[str], inputs: Sequence[str]) -> Iterator[Seen]:
    """Hooks on those layers while the block runs; yields the function (path, side) -> what was seen there."""
    records: dict[tuple[str, str], list[tuple[Tensor, int]]] = {}

    def record(path: str, side: str, value: Any) -> None:
        tensor = _tensor(value, f"The {side} of layer '{path}'")
        # Inference tensors have no version to betray a later in-place layer, so they are copied.
        kept = (tensor.clone(), 0) if tensor.is_inference() else (tensor, tensor._version)
        records.setdefault((path, side), []).append(kept)

    def seen(path: str, side: str) -> Tensor:
        found = records.get((path, side), [])
        if len(found) != 1:
            raise InputError(
                f"Layer '{path}' runs {len(found)} times in a forward pass, so its {side} is not one tensor; "
                "name a layer that runs once."
            )
        tensor, version = found[0]
        if not tensor.is_inference() and tensor._version != version:
            raise InputError(
                f"The {side} of layer '{path}' is overwritten in place by a later layer; "
                "name that layer instead, or set inplace=False there."
            )
        return tensor

    def after(path: str) -> Callable[..., None]:
        return lambda layer, arguments, output: record(path, "output", output)

    def before(path: str) -> Callable[..., None]:
        return lambda layer, arguments: record(path, "input", arguments)

    handles = [module.get_submodule(path).register_forward_hook(after(path)) for path in outputs]
    handles += [module.get_submodule(path).register_forward_pre_hook(before(path)) for path in inputs]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _check_path(module: nn.Module, path: str) -> None:
    known = [name for name, _ in module.named_modules() if name]
    if path not in known:
        # A wrong path is near to paths no deeper than itself; the others would only make the sentence longer.
        raise unknown("layer", path, [name for name in known if name.count(".") <= path.count(".")])


def _tensor(value: Any, what: str) -> Tensor:
    """The tensor itself, the `logits` of an output object, or the first of a tuple."""
    first = value[0] if isinstance(value, (tuple, list)) and value else None
    for candidate in (value, getattr(value, "logits", None), first):
        if isinstance(candidate, Tensor):
            return candidate
    raise InputError(
        f"{what} is a {type(value).__name__} that does not begin with a tensor; name a layer that gives one."
    )


def _vectors(embedding: Tensor) -> Tensor:
    """[batch, width]: maps [batch, width, rows, columns] and tokens [batch, tokens, width] by their mean."""
    if embedding.ndim == 4:
        return embedding.mean((2, 3))
    return embedding.mean(1) if embedding.ndim == 3 else embedding
