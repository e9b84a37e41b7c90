"""What a hospital runs without privacy: steps on all of its patients."""

from __future__ import annotations

import sys

import nvflare.client as flare
import torch
from patients import Model, loss, of_site

STEPS = 20


def main() -> None:
    """Take the model, train on the hospital's patients, send the model back."""
    flare.init()
    site = int(flare.get_site_name().rpartition("-")[2]) - 1
    inputs, targets = of_site(site, int(sys.argv[1]))
    model = Model()
    descent = torch.optim.SGD(model.parameters(), lr=1.0)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        model.load_state_dict(received.params)
        for _ in range(STEPS):
            descent.zero_grad()
            loss(model(inputs), targets).mean().backward()
            descent.step()
        flare.send(flare.FLModel(params=model.state_dict()))


if __name__ == "__main__":
    main()
