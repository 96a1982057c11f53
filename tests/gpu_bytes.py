"""A GPU that is not there: tensors on the CPU that say they are on it, with the bytes it would have held at most.

What kernels allocate for themselves cannot be seen here. For `topk` and `sort` it is added, no less than torch's own
sources have it; the memory of matrix products is `stream.WORKSPACE`.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_CUDA, _CPU = torch.device("cuda"), torch.device("cpu")
_PIECE = 512  # torch's allocator counts in these


class Gpu:
    """The bytes that are held now and were at most, of tensors by their storage."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[int, str]] = {}
        self.now = self.peak = 0
        self.at_peak: list[tuple[int, str]] = []
        self.ends: dict[int, weakref.ref[Any]] = {}
        self.arriving = self.leaving = False  # results of this call are there, or on the host, wherever its inputs are

    def has(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self.held

    def hold(self, tensor: Tensor, what: str) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.held:
            self.held[key] = _whole(storage.nbytes()), f"{what} {tuple(tensor.shape)} {tensor.dtype}"
            self.ends[key] = weakref.ref(storage, lambda _: self._let_go(key))
            self.now += self.held[key][0]
            self.saw()

    def _let_go(self, key: int) -> None:
        self.now -= self.held.pop(key)[0]
        del self.ends[key]

    def saw(self, inside: int = 0, what: str = "") -> None:
        """Note a peak, with the bytes that a kernel holds for itself."""
        if self.now + inside > self.peak:
            self.peak = self.now + inside
            self.at_peak = sorted([*self.held.values(), (inside, f"inside {what}")], reverse=True)


class _Calls(TorchFunctionMode):
    """Devices as a program sees them."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu, kwargs = self.gpu, dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__" and func in (Tensor.device.__get__, Tensor.is_cuda.__get__):  # type: ignore[attr-defined]
            there = gpu.has(args[0])
            return there if func == Tensor.is_cuda.__get__ else _CUDA if there else _CPU  # type: ignore[attr-defined]
        if func is Tensor.cpu or func is Tensor.to:
            return self._moved(args[0], _CPU if func is Tensor.cpu else [*args[1:], *kwargs.values()][0])
        kwargs.pop("pin_memory", None)
        if torch.device(kwargs.get("device") or "cpu") == _CUDA:
            gpu.arriving, kwargs["device"] = True, _CPU
        try:
            return func(*args, **kwargs)
        finally:
            gpu.arriving = False

    def _moved(self, tensor: Tensor, device: torch.device) -> Tensor:
        gpu = self.gpu
        if gpu.has(tensor) == (device == _CUDA):
            return tensor
        gpu.arriving, gpu.leaving = device == _CUDA, device != _CUDA
        try:
            return tensor.clone()
        finally:
            gpu.arriving = gpu.leaving = False


class _Kernels(TorchDispatchMode):
    """Whatever a kernel returns of tensors on the GPU is there too."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu, kwargs = self.gpu, kwargs or {}
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        halves = func is torch.ops.aten.mm.dtype  # of bfloat16, which not every CPU can multiply
        result = args[0].float() @ args[1].float() if halves else func(*args, **kwargs)
        if gpu.leaving or not (gpu.arriving or any(map(gpu.has, given))):
            return result
        mine = {each.untyped_storage()._cdata for each in given}  # changed in place, or looked at
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.untyped_storage()._cdata not in mine:
                gpu.hold(each, str(func))
        gpu.saw(_inside(func, args), str(func))
        return result


def _whole(size: int) -> int:
    return -(-size // _PIECE) * _PIECE


def _inside(func: Any, args: Any) -> int:
    """Bytes that a kernel allocates for itself."""
    name = func.overloadpacket.__name__
    if name not in ("topk", "sort"):
        return 0
    width = args[0].shape[-1]
    rows = args[0].numel() // width
    if name == "topk":
        blocks = rows * -(-width // 1024)  # of at least so many numbers
        selecting = rows * 1048 + blocks * 520  # 256 counters a row and a block, and some numbers more
        return selecting + _sorting(rows, args[1])
    return _sorting(rows, width)


def _sorting(rows: int, width: int) -> int:
    """In place up to 4,096 numbers; beyond, two pieces of memory for values and their places, and the places."""
    return 0 if width <= 4096 else 40 * rows * width


class _Nothing:
    """A stream or an event where nothing runs beside."""

    def __init__(self, *given: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *given: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *given: None


@contextmanager
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A GPU for the calls of this thread."""
    gpu = Gpu()
    for name in ("Stream", "Event", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, _Nothing)
    with _Kernels(gpu), _Calls(gpu):
        yield gpu
