"""Dense tensors as numpy arrays."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from csf_tool.checkpoint.logical import LogicalTensor
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.checkpoint.streams import Readers
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.dtypes import DTYPES
from csf_tool.errors import UsageError
from csf_tool.text import escape


def numpy_dtype(tensor: LogicalTensor) -> np.dtype[Any]:
    """The dtype of a tensor for numpy.

    Raises:
        UsageError: numpy has none, not even with ml_dtypes where that is installed.
    """
    known = DTYPES.get(tensor.dtype)
    if known and known.numpy:
        return np.dtype(known.numpy)
    if not known or not known.ml_dtypes:
        raise UsageError(f"{escape(tensor.name)}: numpy has no dtype for {escape(tensor.dtype)}")
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{escape(tensor.name)}: numpy has no dtype for {tensor.dtype}: install ml_dtypes, or use framework 'pt'"
        ) from error
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, known.ml_dtypes))
    return dtype


class NumpyLoader:
    """Loads tensors one by one. It holds files open until closed."""

    def __init__(self) -> None:
        self._readers = Readers()

    def close(self) -> None:
        """Close the files."""
        self._readers.close()

    def load(self, batch: Sequence[LogicalTensor]) -> list[NDArray[Any]]:
        """The tensors of a batch, each in memory of its own.

        Raises:
            UsageError: numpy has no such dtype.
            StreamError: the streams of a plane break a rule of the format.
            CheckpointError: a shard cannot be read.
            EnvironmentFault: the system cannot read it, or it changed since its header was read.
        """
        with self._readers.unchanged():
            return [self._data(tensor).view(numpy_dtype(tensor)).reshape(tensor.shape) for tensor in batch]

    def _data(self, tensor: LogicalTensor) -> NDArray[np.uint8]:
        """The bytes of a tensor, in one dimension."""
        source = tensor.source
        if isinstance(source, Plane):
            streams = self._readers.streams(source).require_decodable()
            return next(NumpyDecoder().decode([streams])).scales.reshape(-1)
        return np.frombuffer(self._readers[source.shard].read(source.tensor.begin, source.tensor.end), np.uint8)

    def cut(self, whole: NDArray[Any], index: Any) -> NDArray[Any]:
        """A part of an array, in memory of its own; the array itself when it is all of it."""
        part = np.asarray(whole[index])
        return part if part.size == whole.size else part.copy()
