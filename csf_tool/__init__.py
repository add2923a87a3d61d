"""csf-tool: inspect, verify and expand FP4 checkpoints whose block scales are CSF-compressed."""

from csf_tool.version import __version__

__all__ = ["__version__"]
