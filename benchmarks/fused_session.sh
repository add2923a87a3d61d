#!/usr/bin/env bash
# Products from compressed scales on a GPU, in about two minutes: compiles, checks, times, profiles, and prints a table.
# Groups of designs have processes of their own, so that one that fails or hangs does not stop the others.
#
# usage: benchmarks/fused_session.sh FOLDER [SECONDS]    SECONDS: of all the timing, 60 if left out
seconds=${2:-60}
source "$(dirname "$0")/card_steps.sh" "$1"

triton=(dense "decoded first" "dense, overlapping" "both decoded first" "both decoded first, overlapping" "down decoded beside")
gluon=(prologue "dense in Gluon" "prologue, overlapping" "dense in Gluon, overlapping")

# Designs in Triton are checked where they are timed, in their launch shapes, and those in Gluon on small stacks, too.
# Nothing is timed while kernels are compiled and values are checked. Each process holds 3 GB of the GPU.
shares=$(($(nproc) > 15 ? 15 : $(nproc)))
for ((share = 0; share < shares; share++)); do
    step "compile_$share" 100 "$python" benchmarks/fused.py --warm "$share/$shares" &
done
number=0
for design in "${gluon[@]}"; do
    number=$((number + 1))
    step "check_$number" 100 "$python" benchmarks/fused.py --check --json "$out/check.jsonl" --only "$design" &
done
wait
say "compiled and checked"
third=$((seconds / 3))
step times_triton $((third + 25)) "$python" benchmarks/fused.py --json "$out/products.jsonl" --seconds "$third" --only "${triton[@]}"
step times_gluon $((third + 25)) "$python" benchmarks/fused.py --json "$out/products.jsonl" --seconds "$third" --only "${gluon[@]}"
step times_strip $((third + 25)) "$python" benchmarks/fused.py --json "$out/products.jsonl" --seconds "$third" --only strip
"$python" benchmarks/fused.py --table "$out/products.jsonl" 2>&1 | tee "$out/table.txt"

if ncu=$(command -v ncu); then
    step profile 60 "$ncu" --profile-from-start off --clock-control none --csv --page details --log-file "$out/profile.csv" \
        --section SpeedOfLight --section ComputeWorkloadAnalysis --section MemoryWorkloadAnalysis --section WarpStateStats --section Occupancy \
        "$python" benchmarks/fused.py --profile --only dense prologue "dense in Gluon" strip
    grep profiled: "$out/profile.txt"
    "$python" - "$out/profile.csv" << 'END'
import csv
import sys

names = {
    "Duration": "", "Memory Throughput": "memory", "Compute (SM) Throughput": "SM", "L2 Hit Rate": "L2 hits",
    "Achieved Occupancy": "occupancy", "Warp Cycles Per Issued Instruction": "cycles an issue", "Executed Ipc Active": "IPC",
}
with open(sys.argv[1]) as file:
    lines = [line for line in file if line.startswith('"')]
found = {}
for row in csv.DictReader(lines):
    if row.get("Metric Name") in names:
        key = row["ID"], row["Kernel Name"][:10], row["Grid Size"]
        found.setdefault(key, []).append(f"{names[row['Metric Name']]} {row['Metric Value']} {row['Metric Unit']}")
for key, values in found.items():
    print(*key, "|", ", ".join(values))
END
fi
say "done"
grep -h '"error"' "$out"/*.jsonl 2> /dev/null | sort -u | head -n 15
