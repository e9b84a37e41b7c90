"""What a site does: train on its own digits.

An ordinary Client API script, which knows nothing of quietbit.
"""

from __future__ import annotations

import sys

import nvflare.client as flare
from digits import own_examples, train

SITES, STEPS, RATE = int(sys.argv[1]), 5, 0.5


def main() -> None:
    """Take the model, train it, send it back.

    The number of examples stays on the site, whatever the script says.
    """
    flare.init()
    site = int(flare.get_site_name().rpartition("-")[2]) - 1
    examples = own_examples(site, SITES)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        ((name, model),) = received.params.items()
        meta = {"NUM_STEPS_CURRENT_ROUND": len(examples.digits)}
        flare.send(flare.FLModel(params={name: train(model, examples, STEPS, RATE)}, meta=meta))


if __name__ == "__main__":
    main()
