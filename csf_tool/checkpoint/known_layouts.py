"""The layouts that are known."""

from csf_tool.checkpoint.container_layout import Container
from csf_tool.checkpoint.layout import HuggingFace, Layout

LAYOUTS: list[type[Layout]] = [Container, HuggingFace]
"""Layouts in the order in which a folder is compared with them: those with documents of their own come first."""
