"""What a hospital runs: a Client API script whose only training is `dp_sgd_step`."""

from __future__ import annotations

import sys

import nvflare.client as flare
from patients import Model, loss, of_site

from quietbit.nvflare import dp_sgd_step


def main() -> None:
    """Take the model, hand the gradients of drawn patients to the gate.

    What is sent back plays no part.
    """
    flare.init()
    site = int(flare.get_site_name().rpartition("-")[2]) - 1
    data, model = of_site(site, int(sys.argv[1])), Model()
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        model.load_state_dict(received.params)
        dp_sgd_step(model, loss, data)
        flare.send(flare.FLModel(params=model.state_dict()))


if __name__ == "__main__":
    main()
