"""The layouts that are known."""

from csf_tool.checkpoint.container_layout import Container
from csf_tool.checkpoint.layout import HuggingFace, Layout

LAYOUTS: list[type[Layout]] = [Container, HuggingFace]
"""In the order in which a folder is held against them: what has documents of its own comes first."""
