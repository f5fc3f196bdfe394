#!/usr/bin/env bash
# The speed table and one whole experiment on an accelerator, in at most eight minutes:
#   bash benchmarks/accelerator.sh [FOLDER [smoke]]
# It needs JAX for the accelerator and the experiments' packages, and no network; smoke tries the script on a CPU. What
# is done when the time is up stays in the folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=${1:-results/accelerator}
scale=${2:-default}
python=${PYTHON:-python}
cases=(20-5-1 784-100x3-10 784-256x2-10 784-2000x3-10 conv-32x32 transformer-mlp resnet-18)
repeats=3
seconds=230  # of each half
if [[ $scale == smoke ]]; then
  cases=(784-256x2-10 transformer-mlp)
  repeats=1
fi

mkdir -p "$folder"
"$python" -c 'import jax; print(jax.__version__, jax.devices())' | tee "$folder/devices.txt"
if [[ $scale != smoke ]] && grep -q CpuDevice "$folder/devices.txt"; then
  echo "error: JAX sees no accelerator; smoke tries the script on a CPU" >&2
  exit 1
fi
status=0
timeout "$seconds" "$python" -m benchmarks speed --case "${cases[@]}" --method backprop cbp_contribution gxd redo \
  --optimizer sgd --repeats "$repeats" --out "$folder/speed" | tee "$folder/speed.txt" || status=$?
timeout "$seconds" "$python" -m benchmarks permuted-mnist --scale "$scale" --method backprop cbp_contribution gxd \
  --out "$folder/permuted" | tee "$folder/permuted.txt" || status=$?
exit "$status"
