"""A further codec on the GPU: kernels take the bits of a code as data."""

import numpy as np
import pytest
import torch

from csf_tool import compress_csf_scales, decompress_csf_scales, prepare_csf_scales
from csf_tool.gpu import layouts
from tests.gpu.stacks import encoded, expected, on_device
from tests.test_third_codec import THIRD

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("layout", ["linear", "swizzled"])
def test_kernels_decode_it(layout: layouts.DenseLayout) -> None:
    dense = np.random.default_rng(1).integers(100, 107, (3, 32, 12), np.uint8)
    stack = encoded(THIRD, dense)
    fixed = on_device(np.stack(stack.fixed))
    words = on_device(np.concatenate(stack.exceptions).view(np.int32))
    prepared = prepare_csf_scales(THIRD, fixed, words, [len(w) for w in stack.exceptions], rows=32, cols=12)
    got = decompress_csf_scales(prepared, layout=layout)
    assert got.dtype == torch.float8_e5m2
    assert got.view(torch.uint8).cpu().numpy().tobytes() == expected(stack, layout).tobytes()


def test_kernels_encode_it() -> None:
    dense = np.random.default_rng(2).integers(100, 107, (2, 32, 12), np.uint8)
    stack = encoded(THIRD, dense)
    streams = compress_csf_scales(THIRD, on_device(dense))
    assert streams.fixed.cpu().numpy().tobytes() == np.stack(stack.fixed).tobytes()
    words = streams.exceptions.view(torch.int32).cpu().numpy()
    assert words.tobytes() == np.concatenate(stack.exceptions).tobytes()
