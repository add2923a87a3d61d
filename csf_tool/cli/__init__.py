"""The command line: parse, call one operation, render, exit code.

This is what `csf-tool` loads first, so it loads nothing itself: until `main` runs, Ctrl-C would be a traceback.
"""

import os

from csf_tool import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from csf_tool.cli.application import app as app


def main() -> None:
    """Run the command line."""
    process.begin()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads of numpy would forbid forked workers
    code: object = process.NOT_HERE
    try:
        from csf_tool import garbage
        from csf_tool.cli.application import app

        garbage.set_for_one_command()
        app()
    except SystemExit as ended:
        code = ended.code
    except Exception as error:  # what commands raise is dealt with there: this is of the imports before
        if process.shows_tracebacks():
            raise
        process.say(process.words_for(error))
    process.end(code if isinstance(code, int) else process.NOT_HERE)


def __getattr__(name: str) -> "Any":
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from csf_tool.cli.application import app

    return app
