"""Time `csf-tool stats` against huggingface_hub's own scan of the same files, whole processes, in turns.

The checkpoint is a folder with an index, which both read: every shard's header and the index, no tensor data.
"""

import argparse
import compileall
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import csf_tool

STATS = [sys.executable, "-m", "csf_tool", "stats"]
HUB = [
    sys.executable,
    "-c",
    "import sys; from huggingface_hub import get_local_safetensors_metadata as scan; scan(sys.argv[1])",
]


class Seconds(NamedTuple):
    wall: float
    cpu: float


def timed(command: list[str]) -> Seconds:
    """What a process takes from its start to its end, its interpreter's start included."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Seconds(wall, spent)


def best(runs: list[Seconds]) -> Seconds:
    return Seconds(min(run.wall for run in runs), min(run.cpu for run in runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("runs", type=int, nargs="?", default=5)
    args = parser.parse_args()
    checkpoint, runs = args.checkpoint, args.runs
    compileall.compile_dir(Path(csf_tool.__file__).parent, quiet=1)  # as pip does for all but editable installations
    turns = [(timed([*STATS, str(checkpoint)]), timed([*HUB, str(checkpoint)])) for _ in range(runs)]
    ours, hub = best([own for own, _ in turns]), best([other for _, other in turns])
    print(f"best of {runs}          wall s   cpu s")
    print(f"csf-tool stats     {ours.wall:6.2f}  {ours.cpu:6.2f}")
    print(f"huggingface_hub    {hub.wall:6.2f}  {hub.cpu:6.2f}")
    print(f"times as fast      {hub.wall / ours.wall:6.2f}  {hub.cpu / ours.cpu:6.2f}")


if __name__ == "__main__":
    main()
