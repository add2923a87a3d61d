"""The values of scale bytes, to show to people. Nothing that decodes or compares uses them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from csf_tool.codec.formats import CsfFormat

_BYTES = np.arange(256)


def _e4m3() -> NDArray[np.float64]:
    """Bias 7, no infinities, NaN for 0x7F and 0xFF: OCP 8-bit Floating Point Specification, section 5.3."""
    exponent, mantissa = _BYTES >> 3 & 15, _BYTES & 7
    normal = (8 + mantissa) * 2.0 ** (exponent - 10)
    value = np.where(exponent > 0, normal, mantissa * 2.0**-9)
    value = np.where(_BYTES < 128, value, -value)
    return np.where(_BYTES & 0x7F == 0x7F, np.nan, value)


def _ue8m0() -> NDArray[np.float64]:
    """`2 ** (byte - 127)`, NaN for 0xFF: OCP Microscaling Formats, section 5.4.1."""
    return np.where(_BYTES == 0xFF, np.nan, 2.0 ** (_BYTES - 127))


VALUES: dict[str, Callable[[], NDArray[np.float64]]] = {"E4M3": _e4m3, "UE8M0": _ue8m0}
"""The values of the bytes 0 to 255 by `CsfFormat.scale_type`."""


def scale_values(fmt: CsfFormat) -> NDArray[np.float64]:
    """The value of each byte: float64 `[256]`, NaN where it is none.

    Raises:
        NotImplementedError: nobody has said what the bytes of this format stand for.
    """
    if fmt.scale_type not in VALUES:
        raise NotImplementedError(
            f"{fmt.title} scales are {fmt.scale_type}, and codec/values.py has no values for them"
        )
    return VALUES[fmt.scale_type]()
