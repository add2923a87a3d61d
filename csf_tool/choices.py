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


class Target(StrEnum):
    """What `convert` writes: the layouts, and a directory that has engines read a container."""

    HF = "hf"
    CONTAINER = "container"
    SERVING = "serving"


class CompressTo(StrEnum):
    """Layouts that `compress` writes."""

    HF = Target.HF.value
    CONTAINER = Target.CONTAINER.value
