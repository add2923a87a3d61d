"""What options let one choose: for the command line, which must import nothing heavy, and for what it calls."""

from enum import StrEnum


class GroupBy(StrEnum):
    """What `stats` groups planes by."""

    LAYER = "layer"
    SHARD = "shard"
    PROJECTION = "projection"


class CrossCheck(StrEnum):
    """How many planes that the GPU decodes are compared with the CPU's decode."""

    ALL = "all"
    SAMPLE = "sample"
    NONE = "none"


class CompressTo(StrEnum):
    """Layouts that `compress` writes."""

    HF = "hf"
    CONTAINER = "container"


class Target(StrEnum):
    """What `convert` writes."""

    HF = "hf"
    CONTAINER = "container"
    SERVING = "serving"
