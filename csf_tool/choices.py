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


class IdentityBy(StrEnum):
    """The facts that stand for a shard in `identity`."""

    DIGESTS = "digests"
    SIZES = "sizes"


class Target(StrEnum):
    """Layouts that `convert` writes, and a directory that has engines read a container."""

    HF = "hf"
    CONTAINER = "container"
    SERVING = "serving"


class CompressTo(StrEnum):
    """Layouts that `compress` writes."""

    HF = Target.HF.value
    CONTAINER = Target.CONTAINER.value
