"""Results of a benchmark, noted as soon as they are there: a run that is cut off leaves what it has."""

import json
from pathlib import Path


class Note:
    """Prints results, and appends them to a file."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.wrong = path, 0

    def __call__(self, **result: object) -> None:
        self.wrong += "error" in result
        line = json.dumps(result)
        print(line, flush=True)
        if self.path:
            with self.path.open("a") as file:
                file.write(line + "\n")
