"""Encoding on the GPU: byte for byte what the reference writes."""

import pickle
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from csf_tool import (
    CsfStreams,
    compress_mxfp4_scales,
    compress_nvfp4_scales,
    decompress_nvfp4_csf_scales,
    prepare_csf_scales,
)
from csf_tool.codec import reference
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from tests.codec.vectors import Vector, golden
from tests.gpu.stacks import DEVICE, Bytes, on_device, random_scales

COMPRESS: dict[CsfFormat, Callable[[torch.Tensor], CsfStreams]] = {
    NVFP4: compress_nvfp4_scales,
    MXFP4: compress_mxfp4_scales,
}


def check(fmt: CsfFormat, scales: Bytes) -> CsfStreams:
    """Encode a stack, and compare with the reference plane by plane."""
    streams = COMPRESS[fmt](on_device(scales))
    assert len(streams.planes()) == len(scales)
    for plane, (fixed, words) in zip(scales, streams.planes(), strict=True):
        want_fixed, want_words = reference.encode(fmt, plane)
        assert fixed.cpu().numpy().tobytes() == want_fixed.tobytes()
        assert words.view(torch.int32).cpu().numpy().tobytes() == want_words.tobytes()
    return streams


@pytest.mark.slow
@pytest.mark.parametrize("vector", golden(), ids=str)
def test_golden_scales_encode_to_their_streams(vector: Vector) -> None:
    assert vector.scales is not None
    streams = COMPRESS[vector.fmt](on_device(vector.scales))
    assert streams.fixed.cpu().numpy().tobytes() == vector.fixed.tobytes()
    assert streams.exceptions.view(torch.int32).cpu().numpy().tobytes() == vector.exceptions.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("outside", [0.0, 0.01, 0.5])
@pytest.mark.parametrize(
    ("fmt", "cols"),
    [(NVFP4, 48), (NVFP4, 24), (NVFP4, 12), (NVFP4, 6), (NVFP4, 264), (MXFP4, 48), (MXFP4, 24), (MXFP4, 9)],
)
def test_geometries(fmt: CsfFormat, cols: int, outside: float) -> None:
    """Units and loads of every width, rows with padding, more scales than 8 bits count; few and many exceptions."""
    experts = 1 if outside == 0.5 else 2  # every row takes the long way then: seconds in the interpreter
    check(fmt, random_scales(fmt, experts, 16, cols, outside))


# Rows for which the first look proves nothing: two far humps, everything at an end, samples that mislead.
HARD_ROWS = {
    "two humps": [10] * 11 + [200] * 13,
    "two equal humps": [10] * 12 + [200] * 12,
    "an even spread": list(range(0, 240, 10)),
    "ends": [0] * 8 + [255] * 8 + [128] * 8,
    "lowest": [0] * 24,
    "highest": [255] * 24,
    "one bin": list(range(64, 80)) + [64] * 8,
    "across bins": list(range(72, 88)) + [72] * 8,
    "samples far below the rest": [10, 200, 201] * 8,
    "samples far above the rest": [240, 31, 30] * 8,
}


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [NVFP4, MXFP4], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("values", HARD_ROWS.values(), ids=HARD_ROWS.keys())
def test_rows_of_every_shape(fmt: CsfFormat, values: list[int]) -> None:
    check(fmt, np.tile(np.array(values, np.uint8), (1, 16, 1)))


@pytest.mark.slow
def test_rows_that_look_in_different_directions() -> None:
    """Each row of a program finds its best window while others still look for theirs."""
    rows = [np.array(HARD_ROWS[name], np.uint8) for name in sorted(HARD_ROWS)]
    check(NVFP4, np.stack([rows[i % len(rows)] for i in range(16)])[None])


@pytest.mark.slow
def test_planes_of_many_programs() -> None:
    check(NVFP4, random_scales(NVFP4, 3, 1040, 2, 0.3))


@pytest.mark.slow
def test_scales_at_an_odd_address() -> None:
    scales = random_scales(NVFP4, 2, 16, 8, 0.1)
    shifted = torch.empty(scales.size + 1, dtype=torch.uint8, device=DEVICE)[1:].view(scales.shape)
    shifted.copy_(on_device(scales))
    streams, aligned = compress_nvfp4_scales(shifted), compress_nvfp4_scales(on_device(scales))
    assert torch.equal(streams.fixed, aligned.fixed)
    assert torch.equal(streams.exceptions.view(torch.int32), aligned.exceptions.view(torch.int32))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    fmt=st.sampled_from([NVFP4, MXFP4]),
    cols=st.sampled_from([2, 8, 14, 24]),
    values=st.lists(st.integers(0, 255), min_size=1, max_size=8),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_plane_encodes_as_the_rule_says(fmt: CsfFormat, cols: int, values: list[int], seed: int) -> None:
    """Few values, so that windows tie often."""
    random = np.random.default_rng(seed)
    check(fmt, random.choice(np.array(values, np.uint8), (1, 16, cols)))


def test_streams_can_be_prepared_as_they_are() -> None:
    scales = random_scales(NVFP4, 3, 32, 24, 0.05)
    streams = check(NVFP4, scales)
    prepared = prepare_csf_scales(
        NVFP4, streams.fixed, streams.exceptions, streams.counts, rows=32, cols=24, validate=False
    )
    assert decompress_nvfp4_csf_scales(prepared).view(torch.uint8).cpu().numpy().tobytes() == scales.tobytes()


@pytest.mark.slow
def test_more_exceptions_than_there_is_room_for_at_first() -> None:
    """Two stacks are queued before the first one's exceptions are asked for."""
    many, few = (on_device(random_scales(NVFP4, 2, 32, 24, share, seed=3)) for share in (0.9, 0.0))
    queued = [compress_nvfp4_scales(scales) for scales in (many, few)]
    assert queued[0].ends[-1] > 2 * 32 * 24 // 2
    assert len(queued[0].exceptions) == queued[0].ends[-1] == sum(queued[0].counts)
    assert queued[1].counts == [0, 0]
    assert len(queued[1].exceptions) == 0


@pytest.mark.slow
def test_streams_whose_exceptions_are_known_hold_on_to_nothing_else() -> None:
    """The dense scales and the kernels' marks are released."""
    dense = on_device(random_scales(NVFP4, 2, 32, 24, 0.9))
    of_dense = weakref.ref(dense)
    streams = compress_nvfp4_scales(dense)
    del dense
    assert sum(streams.counts) > 0
    assert of_dense() is None
    again = pickle.loads(pickle.dumps(streams))
    assert again.counts == streams.counts
    assert torch.equal(again.words, streams.words)


def test_float8_scales_are_taken_by_their_bits() -> None:
    scales = on_device(random_scales(NVFP4, 1, 16, 8, 0.1))
    as_float, as_bytes = (compress_nvfp4_scales(s) for s in (scales.view(torch.float8_e4m3fn), scales))
    assert torch.equal(as_float.fixed, as_bytes.fixed)
    assert as_float.ends == as_bytes.ends


@pytest.mark.parametrize(
    ("scales", "error", "message"),
    [
        (torch.zeros(16, 8, device=DEVICE), TypeError, "tensor of bytes .float8 or uint8., not torch.float32"),
        (torch.zeros(8, 16, dtype=torch.uint8, device=DEVICE).T, ValueError, "must be contiguous"),
        (torch.zeros(16, dtype=torch.uint8, device=DEVICE), ValueError, "must be contiguous"),
        (torch.zeros(20, 8, dtype=torch.uint8, device=DEVICE), ValueError, "20 rows are not a positive multiple of 16"),
        (
            torch.zeros(16, 9, dtype=torch.uint8, device=DEVICE),
            ValueError,
            "9 columns are not a positive multiple of 2",
        ),
    ],
)
def test_compress_refuses(scales: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compress_nvfp4_scales(scales)
