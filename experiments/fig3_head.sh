#!/bin/sh
# Figure 3, the head alone: all mechanisms on the features of one network, I-MVU rotated and not.
#
#   sh experiments/fig3_head.sh DATA OUT
#
# DATA holds cifar10/, tiny-imagenet-32/ and wide-resnet-28-10/ (183 MiB in all); OUT gets the
# features (150 MB, half precision) and fig3-head.json, which belongs in experiments/results. It
# needs a GPU: the network's forward pass over 110,000 images is 10^15 operations, hours on a CPU
# and a minute on an H200. Kept lines are not run again, so that it can be started several times.
set -eu
data=$1
out=$2
export PYTHONPATH=src:packages/lab/src
[ -e "$out/wide-features.npz" ] || python experiments/public_features.py \
    --network "$data/wide-resnet-28-10" --data "$data" --device cuda --out "$out/wide-features.npz"
python experiments/pretrained_head.py "$out/wide-features.npz" --turn none --features 640 \
    --epsilon 1 3 10 30 100 --adjacency zero-out --minutes 9 --device cuda \
    --mechanism vmvu gaussian imvu imvu-plain sign none --out "$out/fig3-head.json"
