# What the scripts for a short loan of a GPU share. Sourced with the folder for results as $1: goes to the root of the
# project, and defines `say` and `step`.
set -uo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
export PYTHONPATH=$PWD
# Compiled once for all processes: where Python may not write beside its sources, each takes seconds for it, torch's most.
export PYTHONPYCACHEPREFIX=${PYTHONPYCACHEPREFIX:-/tmp/csf-tool-pycache}
unset PYTHONDONTWRITEBYTECODE
python=${PYTHON:-python3}
begun=$SECONDS

say() { echo "[$((SECONDS - begun)) s] $*" | tee -a "$out/steps.txt"; }

# step NAME SECONDS COMMAND...: its output in NAME.txt, its end in steps.txt; it is stopped after so long, then killed.
step() {
    local name=$1 limit=$2 status=0
    shift 2
    timeout -k 3 "$limit" "$@" > "$out/$name.txt" 2>&1 || status=$?
    say "$name: exit $status, last: $(tail -n 1 "$out/$name.txt" | cut -c1-160)"
}

say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader), $(nproc) cores"
"$python" -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)' >> "$out/steps.txt"
