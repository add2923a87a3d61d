#!/usr/bin/env bash
# Everything that a short loan of a GPU is for, in one call of eight minutes at most: checks, then times, most wanted
# first. Each step writes its figures when it ends, so that a run that is cut off leaves what it has.
#
# usage: benchmarks/card_session.sh FOLDER [first|commands|rest]
#   first     (the default) checks; the decode's candidates
#   commands  expand, verify and load_file on the CPU, the GPU and with auto, in /dev/shm
#   rest      csf-tool bench as a whole; compute-sanitizer on the products
# Products from compressed scales have benchmarks/fused_session.sh.
# CSF_TOOL_FLASHINFER=FOLDER with FlashInfer's csf_scales.cu as a torch extension puts it beside every figure.
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
part=${2:-first}
export PYTHONPATH=$here
cd "$here" || exit 2
python=${PYTHON:-python3}
begun=$SECONDS

say() { echo "[$((SECONDS - begun)) s] $*" | tee -a "$out/steps.txt"; }

# step NAME SECONDS COMMAND...: its output in NAME.txt, its end in steps.txt; it is stopped after so long.
step() {
    local name=$1 limit=$2 status=0
    shift 2
    timeout "$limit" "$@" > "$out/$name.txt" 2>&1 || status=$?
    say "$name: exit $status, last: $(tail -n 1 "$out/$name.txt" | cut -c1-160)"
}

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2> /dev/null | head -n 1)
say "part $part, $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader), $(nproc) cores"
"$python" -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)' | tee -a "$out/steps.txt"

case $part in
first)
    # While kernels are compiled and bytes are checked nothing is timed, so all of it runs side by side.
    step flashinfer 120 "$python" -c 'from csf_tool.bench import flashinfer as f; print(f.missing()); import os; os.environ.get(f.FOLDER) and f._built(os.environ[f.FOLDER])' &
    step gpu_check 210 "$python" benchmarks/gpu_check.py --no-bench &
    for only in "bold row" "all active" "clustered" "unrouted"; do
        step "compile_${only// /_}" 150 "$python" benchmarks/decode_candidates.py --only "$only" --repeats 2 &
    done
    [ -z "$sanitizer" ] || step memcheck 200 "$sanitizer" --tool memcheck --error-exitcode 9 "$python" benchmarks/gpu_check.py --sanitize &
    wait
    say "checked and compiled"
    step decode 110 "$python" benchmarks/decode_candidates.py --json "$out/decode.jsonl" --only "bold row" "all active" clustered floor
    [ $((SECONDS - begun)) -gt 400 ] || [ -z "$sanitizer" ] ||
        step racecheck $((460 - SECONDS + begun)) "$sanitizer" --tool racecheck --error-exitcode 9 "$python" benchmarks/gpu_check.py --sanitize
    ;;
commands)
    step devices 450 "$python" benchmarks/devices.py /dev/shm/csf-tool-devices --layers 1 4 16 --repeat 2 2 1 --seconds 400 --json "$out/devices.jsonl"
    rm -rf /dev/shm/csf-tool-devices
    ;;
rest)
    step decode_rest 110 "$python" benchmarks/decode_candidates.py --json "$out/decode.jsonl" --only layouts "few active" unrouted "other stacks" "large planes"
    step bench 150 "$python" benchmarks/gpu_check.py --no-checks --json "$out/bench.json"
    if [ -n "$sanitizer" ]; then
        step racecheck_products 70 "$sanitizer" --tool racecheck --error-exitcode 9 "$python" benchmarks/fused.py --check
        step memcheck_products 60 "$sanitizer" --tool memcheck --error-exitcode 9 "$python" benchmarks/fused.py --check
    fi
    ;;
*)
    say "no part $part"
    exit 2
    ;;
esac
say "done"
# Faults and differences in plain sight, at the end of what is shown.
grep -l "FAILED" "$out"/*.txt 2> /dev/null | sed 's/^/FAILED in /'
grep -h '"error"' "$out"/*.jsonl "$out"/compile_*.txt 2> /dev/null | sort -u | head -n 20
tail -n 60 "$out"/decode.jsonl "$out"/devices.jsonl 2> /dev/null
