"""Arguments of callers: tensors of a dtype, tensors of bytes, and whole numbers."""

import operator
from collections.abc import Iterable

import torch


def require_tensor(name: str, given: object, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise TypeError when an argument is no tensor of one of these dtypes."""
    if not isinstance(given, torch.Tensor) or given.dtype not in dtypes:
        raise TypeError(f"{name} must be a tensor of {' or '.join(map(str, dtypes))}, not {_kind(given)}")


def require_bytes(name: str, given: object, such_as: str) -> None:
    """Raise TypeError when an argument is no tensor of a dtype of one byte; a quantized one has more than its bytes."""
    if not isinstance(given, torch.Tensor) or given.dtype.itemsize != 1 or given.is_quantized:
        raise TypeError(f"{name} must be a tensor of bytes ({such_as}), not {_kind(given)}")


def whole_number(name: str, given: object) -> int:
    """An argument as an int: kernels take no other kind, such as numpy's.

    Raises:
        TypeError: it is no whole number.
    """
    if not isinstance(given, bool):
        try:
            return operator.index(given)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise TypeError(f"{name} must be an int, not {type(given).__name__}")


def whole_numbers(name: str, given: object) -> list[int]:
    """Several of them: as `whole_number`."""
    if not isinstance(given, Iterable):
        raise TypeError(f"{name} must be ints, not {type(given).__name__}")
    return [whole_number(f"each of {name}", number) for number in given]


def _kind(given: object) -> str:
    return str(given.dtype) if isinstance(given, torch.Tensor) else type(given).__name__
