"""What quietbit counts on in Flower that is not public; it changes nothing there.

`CHECKED` names the functions, with digests of their source in the version of Flower that they were
read in. A test fails when one differs: then read it again, see that what is said here still holds,
and write down the new digest.

- `ClientApp.__call__`: all that an app has registered runs inside this call, the lifespan included.
- `run_clientapp`: an app is called, and nothing else of it; every exception of an app reaches the
  server in an error reply, with its text; a process answers one message and ends.
- `register_signal_handlers`, `start_parent_process_monitor`: handlers of SIGINT, SIGTERM and
  SIGQUIT are installed before the app is imported.
- `VirtualClientEngineActor.run`, `ClientAppActor`: simulated nodes are actors of this class, in
  processes of Ray's, and in no others.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["CHECKED", "VERSION", "in_simulation"]

VERSION = "1.41.0"  # the version that was read
CHECKED = {
    "flwr.clientapp.client_app:ClientApp.__call__": "9ac8d938c6eef73d",
    "flwr.simulation.ray_transport.ray_actor:VirtualClientEngineActor.run": "a87502a00b99224d",
    "flwr.supercore.app_utils:start_parent_process_monitor": "0fe6df28b3175305",
    "flwr.supercore.exit.signal_handler:register_signal_handlers": "372d224abafddcf8",
    "flwr.supernode.runtime.run_clientapp:run_clientapp": "6ce09559f3a2f5dc",
    "flwr.supernode.runtime.run_clientapp:push_message": "07cb512c93e065a9",
    "flwr.supernode.runtime.run_clientapp:push_task_output": "9206407456e79e17",
}
ACTOR = "ClientAppActor"  # the class of Flower's simulation runtime that runs an app


def in_simulation() -> bool:
    """Return whether this process is an actor of Flower's simulation runtime.

    A SuperNode's process is not, and neither is one of a runtime that we do not know: there an
    owner's policy decides. An app that starts Ray is its driver, and not an actor.
    """
    if "ray" not in sys.modules:
        return False
    ray: Any = importlib.import_module("ray")  # waits for the thread that is importing it
    if not ray.is_initialized():
        return False
    place = ray.get_runtime_context()
    if place.get_actor_id() is None:
        return False
    actor = place.current_actor
    return str(actor._ray_actor_creation_function_descriptor.class_name) == ACTOR
