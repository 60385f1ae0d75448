#!/usr/bin/env bash
# Pretrains one GT-SSL encoder. The variables are those of the guide; any of them can be set before the call:
#   BATCH_SIZE=2 HIDDEN_CHANNELS=32 DATA=trees/ scripts/run_gtssl_pretrain.sh
# Arguments go to tune, such as --on-oom accumulate. On a GPU, memory is released between batches and kept in
# expandable segments; the structure of the trees is always taken on the CPU.
set -euo pipefail
BATCH_SIZE=${BATCH_SIZE:-4}
HIDDEN_CHANNELS=${HIDDEN_CHANNELS:-64}
NUM_INTERACTIONS=${NUM_INTERACTIONS:-3}
NUM_RBF_CENTERS=${NUM_RBF_CENTERS:-20}
EPOCHS=${EPOCHS:-100}
DEVICE=${DEVICE:-auto}
DATA=${DATA:-synthetic}

exec "$(dirname "$0")/tuner" --workload gt-ssl --mode pretrain --expandable-segments \
  --data "$DATA" --device "$DEVICE" --epochs "$EPOCHS" \
  --set "batch_size=$BATCH_SIZE" --set "hidden_channels=$HIDDEN_CHANNELS" \
  --set "num_interactions=$NUM_INTERACTIONS" --set "num_rbf_centers=$NUM_RBF_CENTERS" \
  --set clear_cache_every_n=1 "$@"
