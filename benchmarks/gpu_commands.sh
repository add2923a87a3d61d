#!/usr/bin/env bash
# The commands on a real GPU: the same bytes as on the CPU, and how long each takes. About a minute on an H200.
#
# usage: benchmarks/gpu_commands.sh FOLDER   (an empty folder with 12 GB of room)
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH=$here
tool() { python3 -m csf_tool "$@"; }
timed() { local begun; begun=$(date +%s%N); "$@" | tail -n 2; echo "   [$((($(date +%s%N) - begun) / 1000000)) ms] ${*:2}"; }
cd "$1"
python3 - <<'PY'
import os
import sys
from pathlib import Path
sys.path.insert(0, os.environ["PYTHONPATH"] + "/benchmarks")
from files import make_dense
make_dense(Path("dense"), 1)
PY
for device in cpu cuda; do
    timed tool compress dense "hf-$device" --device "$device"
    timed tool compress dense "container-$device" --to container --device "$device"
    timed tool expand hf-cpu "out-$device" --device "$device"
    timed tool verify hf-cpu --against dense --device "$device" --cross-check all
    timed tool verify container-cpu --device "$device" --cross-check none
done
diff -rq hf-cpu hf-cuda && diff -rq container-cpu/tensors container-cuda/tensors && diff -rq out-cpu out-cuda
echo "compress and expand: the GPU's files are those of the CPU"
tool expand container-cuda restored --device cuda
for shard in dense/*.safetensors; do cmp "$shard" "restored/${shard#dense/}"; done
echo "expand on the GPU restored every original shard"
for csf in nvfp4-csf-hf nvfp4-csf-container mxfp4-csf-container; do
    tool verify "$here/tests/data/samples/$csf" --device cuda --against "$here/tests/data/samples/${csf%%-*}-dense" | tail -n 1
done
