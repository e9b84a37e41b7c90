"""What quietbit changes in Flower, and what it counts on there that is not public.

Changed: `ClientApp.lifespan`, and the decorators of `ClientApp` that register a function, refuse an
app that has both `PrivateUplink` and a lifespan. A lifespan runs outside every mod, and Flower
sends the text of its exceptions to the server.

Counted on: `CHECKED` names the functions, with digests of their source in the version of Flower
that they were read in. A test fails when one differs: then read it again, see that what is said
here still holds, and write down the new digest.

- `run_clientapp`: every exception of an app reaches the server in an error reply, with its text; a
  process answers one message and ends.
- `register_signal_handlers`, `start_parent_process_monitor`: handlers of SIGINT, SIGTERM and
  SIGQUIT are installed before the app is imported.
- `VirtualClientEngineActor.run`, `ClientAppActor`: simulated nodes are actors of this class, in
  processes of Ray's, and in no others.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from flwr.clientapp import client_app
from flwr.clientapp.client_app import ClientApp
from flwr.clientapp.typing import Mod

from quietbit.errors import InvalidParameter

__all__ = ["CHECKED", "VERSION", "in_simulation", "refuse_lifespans"]

VERSION = "1.41.0"  # the version that was read
CHECKED = {
    "flwr.clientapp.client_app:ClientApp.__call__": "9ac8d938c6eef73d",
    "flwr.clientapp.client_app:ClientApp.lifespan": "792b5b65025348c1",
    "flwr.clientapp.client_app:_get_decorator": "1440f3daee4b4382",
    "flwr.client.mod.utils:make_ffn": "81ecf95abdff0b2b",
    "flwr.simulation.ray_transport.ray_actor:VirtualClientEngineActor.run": "a87502a00b99224d",
    "flwr.supercore.app_utils:start_parent_process_monitor": "0fe6df28b3175305",
    "flwr.supercore.exit.signal_handler:register_signal_handlers": "372d224abafddcf8",
    "flwr.supernode.runtime.run_clientapp:run_clientapp": "6ce09559f3a2f5dc",
    "flwr.supernode.runtime.run_clientapp:push_message": "07cb512c93e065a9",
    "flwr.supernode.runtime.run_clientapp:push_task_output": "9206407456e79e17",
}
ACTOR = "ClientAppActor"  # the class of Flower's simulation runtime that runs an app
PRIVATE = "_quietbit_private"  # set on an app of which a function has the mod
BOTH = (
    "An app with PrivateUplink among its mods cannot have a lifespan: it runs outside every mod, "
    "and Flower sends the text of its exceptions to the server. Do its work in the train function."
)


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


def refuse_lifespans(private: type) -> None:
    """Refuse apps from now on that have a lifespan and a mod of the class ``private``."""
    lifespan = ClientApp.lifespan
    get_decorator = client_app._get_decorator
    empty = client_app._empty_lifespan

    def checked_lifespan(app: ClientApp) -> Any:
        if _has(app._mods, private) or hasattr(app, PRIVATE):
            raise InvalidParameter(BOTH)
        return lifespan(app)

    def checked_decorator(
        app: ClientApp, category: str, action: str, mods: list[Mod] | None
    ) -> Callable[..., Any]:
        if _has(mods, private):
            if app._lifespan is not empty:
                raise InvalidParameter(BOTH)
            setattr(app, PRIVATE, True)
        return get_decorator(app, category, action, mods)

    checked_lifespan.__wrapped__ = lifespan  # type: ignore[attr-defined]
    checked_decorator.__wrapped__ = get_decorator  # type: ignore[attr-defined]
    ClientApp.lifespan = checked_lifespan  # type: ignore[method-assign, assignment]
    client_app._get_decorator = checked_decorator


def _has(mods: list[Mod] | None, private: type) -> bool:
    return any(isinstance(mod, private) for mod in mods or ())
