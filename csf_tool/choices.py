"""The choices that options offer: shared by the command line, which must import nothing heavy, and what it calls."""

from enum import StrEnum


class GroupBy(StrEnum):
    """Ways in which `stats` groups planes."""

    LAYER = "layer"
    SHARD = "shard"
    PROJECTION = "projection"


class CrossCheck(StrEnum):
    """Planes decoded by the GPU that are compared with the CPU's decode."""

    ALL = "all"
    SAMPLE = "sample"
    NONE = "none"


class CompressTo(StrEnum):
    """Layouts that `compress` writes."""

    HF = "hf"
    CONTAINER = "container"


class Target(StrEnum):
    """Layouts that `convert` writes."""

    HF = "hf"
    CONTAINER = "container"
    SERVING = "serving"
