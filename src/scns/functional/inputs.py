"""What every loss does first: leave autocast, widen its inputs, check that they fit together."""

import math
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec

import numpy as np
import torch
from torch import Tensor

from scns.checks import is_number, readable
from scns.errors import InputError, unknown

Arguments = ParamSpec("Arguments")

_TENSOR = (Tensor, Tensor | None)  # what parameters that take nothing else are annotated with

_SMALLEST = 1e-30  # it, and what is divided by it, are numbers of float32
_WHOLE = ("labels_i", "labels_j", "targets", "queue_mask", "index")  # parameters that take integers, or true and false


def full_precision(loss: Callable[Arguments, Tensor]) -> Callable[Arguments, Tensor]:
    """The same function outside autocast, in float64 where an input is float64 and in float32 otherwise.

    Half precision is for networks: a Gram matrix of fp16 features overflows, and 1e-12 is 0 in fp16.
    """

    parameters = signature(loss).parameters
    names = list(parameters)
    tensors_only = {name: each.annotation for name, each in parameters.items() if each.annotation in _TENSOR}

    @wraps(loss)
    def computed(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if not tensors:
            raise InputError(f"{loss.__name__} works on torch tensors; convert its inputs with torch.as_tensor.")
        if not torch.compiler.is_compiling():
            given = dict(zip(names, args, strict=False)) | kwargs
            _check_kinds(loss.__name__, given, tensors_only)
            _check_devices(loss.__name__, given)
        dtype = torch.float64 if any(value.dtype == torch.float64 for value in tensors) else torch.float32
        with torch.autocast(tensors[0].device.type, enabled=False):
            wide_args: Any = [_widened(value, dtype) for value in args]
            wide_kwargs: Any = {name: _widened(value, dtype) for name, value in kwargs.items()}
            return loss(*wide_args, **wide_kwargs)

    return computed


def _check_kinds(name: str, given: dict[str, Any], tensors_only: dict[str, Any]) -> None:
    """Refuses what is no tensor where one must be, arrays elsewhere, and integers but where they are asked for."""
    for parameter, value in given.items():
        if value is None and tensors_only.get(parameter) is Tensor:
            raise InputError(f"{parameter} of {name} must be a tensor, but it is None.")
        other = parameter in tensors_only and value is not None and not isinstance(value, Tensor)
        if other or isinstance(value, np.ndarray | list):
            raise InputError(f"{name} works on torch tensors; convert {parameter} with torch.as_tensor.")
        if isinstance(value, Tensor) and not value.is_floating_point() and parameter not in _WHOLE:
            masks = parameter == "log_weights" and value.dtype == torch.bool  # True would weigh e, False 1
            remedy = "of a mask, give mask.float().log()" if masks else "convert it with .float()"
            raise InputError(f"{parameter} of {name} must be floating point, but it is {value.dtype}; {remedy}.")


def _check_devices(name: str, given: dict[str, Any]) -> None:
    """Refuses tensors on several devices; a single number may be on another, as torch allows."""
    tensors = {parameter: value for parameter, value in given.items() if isinstance(value, Tensor) and value.ndim}
    first, *others = tensors.items() or [("", torch.empty(0))]
    for parameter, value in others:
        if value.device != first[1].device:
            raise InputError(
                f"{name} needs its tensors on one device, but {first[0]} is on {first[1].device} and {parameter} on "
                f"{value.device}; move one with .to(device)."
            )


def _widened(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def check_shapes(first: Tensor, second: Tensor, names: str) -> None:
    """Refuses two tensors of different shape, or without a row: their mean would be NaN."""
    if first.shape != second.shape:
        raise InputError(f"{names} must have the same shape; got {shapes(first, second)}.")
    check_some(first, names)


def check_batch(first: Tensor, second: Tensor, names: str) -> None:
    """Refuses two tensors with different numbers of rows, or with none."""
    if first.ndim < 2 or second.ndim < 2 or first.shape[0] != second.shape[0]:
        raise InputError(f"{names} must hold the same samples, one a row; got {shapes(first, second)}.")
    check_some(first, names)


def check_some(first: Tensor, names: str) -> None:
    """Refuses a batch of no samples."""
    if first.shape[:1] == (0,):
        raise InputError(f"{names} must hold one sample or more; got {list(first.shape)}, so skip empty batches.")


def check_matrices(first: Tensor, second: Tensor, names: str, *, rows: int = 1, why: str = "") -> None:
    """Refuses what is not two matrices [batch, width] over the same samples, or has too few of them."""
    if first.ndim != 2 or second.ndim != 2 or first.shape[0] != second.shape[0]:
        raise InputError(f"{names} must be [batch, width] over the same samples; got {shapes(first, second)}.")
    if first.shape[0] < rows:
        raise InputError(f"{names} need at least {rows} rows{why}; got {shapes(first, second)}.")


def check_positive(name: str, value: float | Tensor, *, zero: bool = False) -> None:
    """Refuses a number that is not finite and above 0 (or 0, where that is allowed); a tensor's as in `check_share`."""
    if isinstance(value, Tensor):  # one that is learnt, say
        if value.ndim:
            raise InputError(f"{name} must be one number; got a tensor {list(value.shape)}.")
        if not readable(value):
            return
        value = value.detach().item()
    try:
        fits = math.isfinite(value) and (value > 0 or (zero and value == 0))
    except TypeError:  # a word, or nothing
        fits = False
    if not fits:
        raise InputError(f"{name} must be a finite number {'from 0 up' if zero else 'above 0'}; got {value!r}.")
    if value and not _SMALLEST <= value <= 1 / _SMALLEST:
        raise InputError(f"{name} must lie between {_SMALLEST:g} and {1 / _SMALLEST:g}; got {value!r}.")


def check_power(value: float, *, whole: bool = False) -> None:
    """Refuses a power below 1, whose gradient is infinite at 0, and a fraction where it must be `whole`."""
    if not is_number(value) or not 1 <= value < math.inf or (whole and value != int(value)):
        raise InputError(f"power must be a {'whole' if whole else 'finite'} number from 1 up; got {value!r}.")


def check_share(name: str, value: float | Tensor) -> None:
    """Refuses a share outside [0, 1]; a tensor's values are looked at only where that costs no synchronisation."""
    if not isinstance(value, Tensor):
        if not is_number(value) or not 0 <= value <= 1:
            raise InputError(f"{name} must lie in [0, 1]; got {value}.")
    elif readable(value) and not bool(((value >= 0) & (value <= 1)).all()):
        raise InputError(f"{name} must lie in [0, 1]; got values from {value.min():g} to {value.max():g}.")


def check_labels(labels: Tensor, classes: int, names: str) -> None:
    """Refuses labels that are not integers in [0, classes); values as in `check_share`."""
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(f"{names} must be integers; got {labels.dtype}.")
    if readable(labels) and not bool(((labels >= 0) & (labels < classes)).all()):
        raise InputError(
            f"{names} must lie in [0, {classes}); got values from {int(labels.min())} to {int(labels.max())}."
        )


def check_choice(kind: str, value: str, known: tuple[str, ...]) -> None:
    """Refuses a name that is not one of the known ones."""
    if value not in known:
        raise unknown(kind, str(value), known)


def shapes(*tensors: Tensor) -> str:
    """The tensors' shapes in words."""
    return " and ".join(str(list(tensor.shape)) for tensor in tensors)
