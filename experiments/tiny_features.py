r"""Features of Tiny-ImageNet's images, made as those of CIFAR-10: public data for a head.

Idea     24 of the 200 classes are of a kind that CIFAR-10 names (there are no aeroplanes and no
         horses among them); 60 images of each are kept with that name, and 7 of each of the others
         without one.

    python experiments/tiny_features.py --data DIR --out tiny-features.npz
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from wide_network import tiny_images

from quietbit_lab.task.efficientnet import read_efficientnet

BEGAN = time.monotonic()
NAMES = {
    1: ("n02814533", "n03100240", "n03670208", "n04285008"),  # automobile
    2: ("n01855672", "n02002724", "n02056570", "n02058221"),  # bird
    3: ("n02123045", "n02123394", "n02124075"),  # cat
    4: ("n02423022",),  # deer
    5: ("n02085620", "n02094433", "n02099601", "n02099712", "n02106662", "n02113799"),  # dog
    6: ("n01641577", "n01644900"),  # frog
    8: ("n03662601", "n03447447"),  # ship
    9: ("n03796401", "n03977966"),  # truck
}
OF_NAMED = 60
OF_OTHERS = 7


def main() -> None:
    """Write features and labels, -1 for images without a name of CIFAR-10's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    folder = given.data / "tiny-imagenet-32"
    classes = json.loads((folder / "index.json").read_text())["classes"]
    named = {name: label for label, names in NAMES.items() for name in names}
    images, places, _, _ = tiny_images(folder)
    chosen = []
    labels = []
    for place, name in enumerate(classes):
        count = OF_NAMED if name in named else OF_OTHERS
        chosen.append(np.flatnonzero(places == place)[:count])
        labels += [named.get(name, -1)] * count
    network = read_efficientnet(given.data, "cpu").tuned(
        Path(__file__).with_name("efficientnet_public.npz")
    )
    rows = images[np.concatenate(chosen)]
    features = []
    for start in range(0, len(rows), 100):
        features.append(network.features(rows[start : start + 100]))
        print(f"{time.monotonic() - BEGAN:6.0f} s  {start + 100} images", flush=True)
    np.savez(given.out, features=np.concatenate(features), labels=np.array(labels))


if __name__ == "__main__":
    main()
