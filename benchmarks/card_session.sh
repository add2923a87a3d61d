#!/usr/bin/env bash
# Everything that a short loan of a GPU is for, in one call of eight minutes at most: checks, then times, most wanted
# first. Each step writes its figures when it ends, so that a run that is cut off leaves what it has.
#
# usage: benchmarks/card_session.sh FOLDER [first|sanitize|commands|rest]
#   first     (the default) checks; the decode's candidates
#   sanitize  compute-sanitizer on all paths of the kernels
#   commands  expand, verify and load_file on the CPU, the GPU and with auto, in /dev/shm
#   rest      csf-tool bench as a whole; compute-sanitizer on the products
# Products from compressed scales have benchmarks/fused_session.sh.
# CSF_TOOL_FLASHINFER=FOLDER with FlashInfer's csf_scales.cu as a torch extension puts it beside every figure.
part=${2:-first}
source "$(dirname "$0")/card_steps.sh" "$1"
say "part $part"

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2> /dev/null | head -n 1)
case $part in
sanitize)
    # A process for each stack: first without the sanitizer, to compile what then is there for it.
    parts=12
    sanitized() {
        local part
        for ((part = 0; part < parts; part++)); do
            step "$1_$part" "$2" "${@:3}" "$python" benchmarks/gpu_check.py --sanitize "$part/$parts" &
        done
        wait
    }
    sanitized compile 150
    sanitized memcheck 150 "$sanitizer" --tool memcheck --error-exitcode 9
    sanitized racecheck 150 "$sanitizer" --tool racecheck --error-exitcode 9
    ;;
first)
    # While kernels are compiled and bytes are checked nothing is timed, so all of it runs side by side.
    step flashinfer 120 "$python" -c 'from csf_tool.bench import flashinfer; print(flashinfer.missing())' &
    step gpu_check 210 "$python" benchmarks/gpu_check.py --no-bench &
    for only in "bold row" "all active" "clustered" "unrouted"; do
        step "compile_${only// /_}" 150 "$python" benchmarks/decode_candidates.py --only "$only" --repeats 2 &
    done
    wait
    say "checked and compiled"
    step decode 110 "$python" benchmarks/decode_candidates.py --json "$out/decode.jsonl" --only "bold row" "all active" clustered floor
    ;;
commands)
    step devices 450 "$python" benchmarks/devices.py /dev/shm/csf-tool-devices --layers 1 4 16 --repeat 2 2 1 --seconds 400 --json "$out/devices.jsonl"
    rm -rf /dev/shm/csf-tool-devices
    ;;
rest)
    step decode_rest 110 "$python" benchmarks/decode_candidates.py --json "$out/decode.jsonl" --only layouts unrouted "other stacks" "large planes" MXFP4
    step bench 200 "$python" benchmarks/gpu_check.py --no-checks --json "$out/bench.json"
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
