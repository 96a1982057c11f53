"""Random numbers that are a function of their keys alone.

Every random decision of scns (order, crops, negatives, mixing coefficients) is hash(seed, stream, epoch, row,
column), so it does not depend on the device, the batch size, the order of rows, the number of workers or processes, or
on what was drawn before. The hash is splitmix64's finaliser, applied once per key in wrapping 64-bit integers, which
are the same on every device.
"""

import operator
from typing import Any

import torch
from torch import Tensor

from scns.errors import InputError

Key = int | Tensor

# Streams keep different uses of one seed apart.
ORDER, CROP_Y, CROP_X, FLIP, SPLIT, NEGATIVES, POSITIVES, MIXING, CLUSTERS, MEMORY, MIXTURE = range(1, 12)

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_WORD = (1 << 64) - 1


def bits(*keys: Key) -> Tensor:
    """64 random bits as int64 for every element of the broadcast keys, on the device of the keys."""
    state: Key = _GOLDEN
    for key in keys:
        if isinstance(state, Tensor) or isinstance(key, Tensor):
            state = _mix(_signed(state) ^ _signed(key))
        else:  # plain numbers are mixed in Python: no tensor is made for them, so nothing is copied to a device
            state = _mix_number(state ^ (_whole(key) & _WORD))
    return state if isinstance(state, Tensor) else torch.tensor(_signed(state))


def uniform(*keys: Key, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform numbers in [0, 1): 24 random bits in float32, 53 in float64."""
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"Uniform numbers are float32 or float64, not {dtype}; convert them afterwards.")
    precision = 53 if dtype == torch.float64 else 24
    return _shift(bits(*keys), 64 - precision).to(dtype) * 2.0**-precision


def integers(high: Key, *keys: Key) -> Tensor:
    """Integers in [0, high); the bias of the modulus is below high / 2^53."""
    return _shift(bits(*keys), 11) % high


def permutation(count: int, *keys: Key, device: torch.device | str | None = None) -> Tensor:
    """A random order of 0 .. count - 1, int64 [count]."""
    return torch.argsort(bits(*keys, torch.arange(count, device=device)), stable=True)


def _mix(state: Tensor) -> Tensor:
    state = state + _signed(_GOLDEN)
    state = (state ^ _shift(state, 30)) * _signed(_MIX_1)
    state = (state ^ _shift(state, 27)) * _signed(_MIX_2)
    return state ^ _shift(state, 31)


def _mix_number(state: int) -> int:
    state = (state + _GOLDEN) & _WORD
    state = ((state ^ (state >> 30)) * _MIX_1) & _WORD
    state = ((state ^ (state >> 27)) * _MIX_2) & _WORD
    return state ^ (state >> 31)


def _shift(state: Tensor, by: int) -> Tensor:
    """Logical shift to the right (torch's is arithmetic)."""
    return (state >> by) & ((1 << (64 - by)) - 1)


def _signed(key: Key) -> Any:
    """The same 64 bits as int64 would hold them."""
    if isinstance(key, Tensor):
        if key.is_floating_point():  # all numbers between two whole ones would be one key
            raise InputError(f"Keys of random numbers are whole numbers, but these are {key.dtype}; use .long().")
        return key.to(torch.int64)
    return ((_whole(key) & _WORD) ^ (1 << 63)) - (1 << 63)


def _whole(key: Any) -> int:
    """A key as a Python number, whose arithmetic has no limit as numpy's has."""
    if isinstance(key, int):
        return key
    try:
        return operator.index(key)
    except TypeError:
        raise InputError(f"Seeds and epochs are whole numbers, but this is {key!r}; convert it with int().") from None
