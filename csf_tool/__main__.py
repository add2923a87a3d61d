"""`python -m csf_tool` is `csf-tool`."""

from csf_tool.cli import main

main()
