"""What `import csf_tool` gives."""

import subprocess
import sys

import csf_tool
import csf_tool.gpu

READING = {"iter_tensors", "load_file", "load_stack", "open_checkpoint", "safe_open"}


def test_the_python_api_is_found_at_the_top() -> None:
    assert {*csf_tool.gpu.__all__, *READING, "__version__"} == set(csf_tool.__all__)
    for name in csf_tool.gpu.__all__:
        assert getattr(csf_tool, name) is getattr(csf_tool.gpu, name)
    for name in READING:
        assert getattr(csf_tool, name).__name__ == name


def test_torch_is_imported_when_it_is_needed() -> None:
    touch = "csf_tool.safe_open, csf_tool.load_file, csf_tool.iter_tensors, csf_tool.open_checkpoint"
    code = f"import sys, csf_tool; {touch}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
