#!/usr/bin/env bash
# Trains both needle models on one GPU, exports and measures them. Results go to OUT, which is
# .cache/needle if not given.
#
#     run.sh [OUT]
#
# SECONDS_EACH (540) is the training time of a model, SEED (1) its seed, MODELS ("full sliding") which ones, PYTHON (python3) what runs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../.cache/needle}
python=${PYTHON:-python3}
mkdir -p "$out"

for model in ${MODELS:-full sliding}; do
    "$python" "$here/train.py" "$model" --out "$out/$model.pt" --seconds "${SECONDS_EACH:-540}" --seed "${SEED:-1}" | tee "$out/$model.log"
    for type in q8_0 f16; do
        "$python" "$here/export.py" "$out/$model.pt" "$out/needle-$model-$type.gguf" --type "$type"
    done
    "$python" "$here/evaluate.py" "$out/$model.pt" --out "$out/$model"
    "$python" "$here/evaluate.py" "$out/$model.pt" --out "$out/$model-q8_0" --round q8_0 --sets needle absent --documents 0.25
done
