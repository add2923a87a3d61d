"""What scale bytes stand for, for people to read. Nothing that decodes or compares uses this."""

import numpy as np
from numpy.typing import NDArray

from csf_tool.codec.formats import CsfFormat


def scale_values(fmt: CsfFormat) -> NDArray[np.float64]:
    """The value of each byte: float64 `[256]`, NaN where it is none.

    NVFP4 scales are E4M3 (bias 7, no infinities, NaN for 0x7F and 0xFF; OCP 8-bit Floating Point Specification,
    section 5.3), MXFP4 scales UE8M0 (2 ** (byte - 127), NaN for 0xFF; OCP Microscaling Formats, section 5.4.1).
    """
    byte = np.arange(256)
    if fmt.scale_type == "E4M3":
        exponent, mantissa = byte >> 3 & 15, byte & 7
        normal = (8 + mantissa) * 2.0 ** (exponent - 10)
        value = np.where(exponent > 0, normal, mantissa * 2.0**-9)
        value = np.where(byte < 128, value, -value)
        return np.where(byte & 0x7F == 0x7F, np.nan, value)
    return np.where(byte == 0xFF, np.nan, 2.0 ** (byte - 127))
