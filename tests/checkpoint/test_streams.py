"""The streams of a plane in memory."""

import numpy as np

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.streams import PlaneStreams, Readers
from csf_tool.coders.encoder import NumpyEncoder, read_scales
from tests.fixture_types import Sample


def test_read_or_encoded_the_streams_of_a_plane_are_the_same(sample: Sample) -> None:
    plane = next(p for p in open_checkpoint(sample("nvfp4-csf-hf")).planes if p.exception_count)
    dense = next(p for p in open_checkpoint(sample("nvfp4-dense")).dense_planes if p.name == plane.name)
    with Readers() as readers:
        stored = readers.streams(plane).require_decodable()
    with Readers() as readers:
        [encoded] = NumpyEncoder().encode(read_scales(readers, [dense]))
    assert encoded.streams.require_decodable().joined() == stored.joined()
    assert len(stored.joined()) == stored.nbytes == plane.csf_bytes
    again = PlaneStreams.split(dense, memoryview(stored.joined()))
    for streams in (stored, encoded.streams, again):
        assert np.array_equal(streams.decode(), encoded.scales)
