"""What `import csf_tool` gives."""

import csf_tool
import csf_tool.gpu


def test_the_gpu_api_is_found_at_the_top() -> None:
    assert set(csf_tool.gpu.__all__) | {"__version__"} == set(csf_tool.__all__)
    for name in csf_tool.gpu.__all__:
        assert getattr(csf_tool, name) is getattr(csf_tool.gpu, name)
