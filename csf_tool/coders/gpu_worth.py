"""Whether a GPU is worth its start for work on files.

Decoding: never. One core decodes the scales of 100 GB of weights while a GPU starts, and reading, comparing and writing
take it ten times as long (docs/performance.md). Encoding takes a core more than ten times as long as decoding, and is
worth a GPU from some size on.
"""

import math

from csf_tool.devices import cores

GPU_START_SECONDS = 3.3
"""Time until a GPU has encoded its first plane: importing torch, CUDA, and a kernel that is compiled or loaded."""

GPU_BYTES_PER_SECOND = 350e6
"""Scales that are read, encoded on a GPU, decoded again by the CPU and kept: the kernel alone would do 450 GB."""

CORE_BYTES_PER_SECOND = 55e6
"""Scales that one job encodes, decodes again and keeps."""

_GAIN_OF_JOBS = 0.6
"""So many times the work of one job is done by n: n to this power. They are threads of one interpreter."""

# All of them: `compress --dry-run` of 1 and 4 layers of 157 MB, NVFP4, on the machine of an H200 (16 cores), 2026-11-30
# (benchmarks/devices.py): 3.05 and 5.24 s on the CPU, 3.92 and 5.26 s on the GPU. On a VM of 2 cores one job did 90 MB
# a second and two of them 72 MB each.


def gpu_pays(nbytes: int, jobs: int) -> bool:
    """Whether a GPU, started now, encodes so many bytes of scales sooner than so many jobs do on the CPU."""
    at_work = max(1, min(jobs, cores()))
    on_cpu = nbytes / (CORE_BYTES_PER_SECOND * math.pow(at_work, _GAIN_OF_JOBS))
    return GPU_START_SECONDS + nbytes / GPU_BYTES_PER_SECOND < on_cpu
