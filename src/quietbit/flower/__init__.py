"""Flower: an app whose call is the owner's gate, and a strategy wrapper.

Idea     two lines change in a Flower app. `PrivateClientApp` turns the difference that a client has
         learnt into one packed release and lets nothing else out; the wrapper
         (`PrivateStrategy`) turns releases into a mean and hands it to any strategy. Both read the
         run's plan from the run config (`federation.plan`). Names (`__init__.pyi`) are imported
         when they are first used.
"""

from quietbit._lazy import attach

RENAMED = {
    "PrivateUplink": "PrivateClientApp: write app = PrivateClientApp() in place of "
    "ClientApp(mods=[PrivateUplink()])",
    "private_step": "dp_sgd_step",
    "current_batch": "private_batch",
    "simulated_directory": "simulated_members",
}
__getattr__, __dir__, __all__ = attach(__name__, __file__, ("flwr", "flower"), RENAMED)
