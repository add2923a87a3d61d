"""Whether a GPU is worth its start for work on files.

Decoding: never. One core decodes the scales of 100 GB of weights while a GPU starts, and reading, comparing and writing
take it ten times as long (docs/performance.md). Encoding takes a core more than ten times as long as decoding, and is
worth a GPU from some size on.
"""

from csf_tool.devices import cores

GPU_START_SECONDS = 5.0
"""Time until a GPU has encoded its first plane: importing torch, CUDA, and a kernel that is compiled or loaded.

On the machine of an H200, of 16 cores, 2026-11-30: importing torch took 3 to 4 s, the rest 1 to 2 s.
"""

GPU_BYTES_PER_SECOND = 500e6
"""Scales that are read, encoded on a GPU, decoded again by the CPU and kept.

An estimate, not yet measured: the kernel takes 0.35 ms for 157 MB (H200, 2026-11-30), the CPU does the rest.
"""

CORE_BYTES_PER_SECOND = 90e6
"""Scales that one core encodes, decodes again and keeps: `compress --jobs 1` of two layers, 315 MB, took 3.5 s of it.

On a VM of 2 cores (AMD EPYC), 2026-11-30, NVFP4. With both cores in use it was 72 MB each. The encoder alone did 65 to
170 MB a second on planes of NVFP4, 60 to 265 MB on those of MXFP4, whose windows are narrower.
"""


def gpu_pays(nbytes: int, jobs: int) -> bool:
    """Whether a GPU, started now, encodes so many bytes of scales sooner than so many jobs do on the CPU."""
    at_work = max(1, min(jobs, cores()))
    return GPU_START_SECONDS + nbytes / GPU_BYTES_PER_SECOND < nbytes / (at_work * CORE_BYTES_PER_SECOND)
