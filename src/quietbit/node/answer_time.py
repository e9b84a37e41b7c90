"""When an answer leaves a node: at a moment fixed before the app began, whatever the app then does.

Idea     how long an app takes, and whether it fails, depends on its data. So the moment of an answer is computed when
         its request is accepted, before the app begins, from the clock and the owner's policy alone: `answer-seconds`
         later, at a multiple of `GRAIN` of the clock. (Pricing a request comes before, and depends on no data.) The
         app runs in a thread of its own. If it fails or is not done in time, the answer is the one of the zero
         update, at the same moment; stamps that travel with an answer say that moment.
Symbols  T: `answer-seconds`. The app has T less the time reserved for clipping, randomising and packing: a quarter of
         T, at most `RESERVED` seconds; and less what drawing the noise of local steps takes, all of which an app may
         leave out, at `NUMBERS` a second. A quarter of T is always the app's; a question whose noise needs more
         than is left is refused.

T is a constant: a deadline that followed earlier apps would be an answer about the data at every change. An owner finds
it in the node's log, which says how long apps take. T = 0 waits for nothing: simulations, whose nodes belong to nobody.
What is left (answers that miss their moment, apps that overrun) is in docs/explanation/threat-model.md, "Time".
"""

from __future__ import annotations

import contextvars
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar, final

from quietbit.errors import require

__all__ = ["GRAIN", "AnswerTime"]

LOGGER = logging.getLogger(__name__)
GRAIN = 0.25  # seconds; answers leave at multiples of it
RESERVED = 10.0
NUMBERS = 4e6  # of noise that a slow core draws, decodes and adds up in a second; 2e7 were measured
SWITCH = 1e-4  # seconds until an abandoned app must hand the interpreter over
Found = TypeVar("Found")


@final
class AnswerTime:
    """The moment of one answer: made when the question arrives, then `run` the app, make the answer, and `wait`."""

    def __init__(self, seconds: float, numbers: int = 0) -> None:
        """Fix the moment, ``seconds`` from now; 0 waits for nothing. ``numbers`` of noise may be left to draw then."""
        now = time.time()
        self._start = time.monotonic()
        self._seconds = math.ceil(seconds / GRAIN) * GRAIN
        self._stamp = math.ceil((now + self._seconds) / GRAIN) * GRAIN
        self._leave = self._start + self._stamp - now
        self._deadline = self._leave - self.check(seconds, numbers)

    @staticmethod
    def check(seconds: float, numbers: int = 0) -> float:
        """Return the seconds that are reserved for the release; refuse noise that would leave the app too few."""
        whole = math.ceil(seconds / GRAIN) * GRAIN
        needed = min(whole / 4, RESERVED) + numbers / NUMBERS
        if whole:
            rule = f"at most {whole * 3 / 4:g}, three quarters of the node's answer-seconds"
            require(needed <= whole * 3 / 4, "seconds to draw the noise of local steps", needed, rule)
        return needed

    def run(
        self, app: Callable[[], Found], crashes: list[BaseException] | None = None, *, simulated: bool = False
    ) -> Found | None:
        """Return what the app returns in time; None, and a line in the node's log, where it fails or is late.

        Everything that an app can raise is such a failure, except the owner's Ctrl-C, and is added to ``crashes``. Of
        a ``simulated`` node's, which whoever runs the simulation is told about, the log says no more than that.
        """
        found: list[Found] = []
        untold = "" if simulated else ", and the server is not told"

        def call() -> None:
            try:
                found.append(app())
            except KeyboardInterrupt:
                if not self._seconds:  # in the thread of its own an app has raised it itself
                    raise
                LOGGER.error("quietbit: the app interrupted itself%s.", untold)
            except BaseException as error:  # an app that ends its process must not be told from one that fails
                LOGGER.error("quietbit: the app failed%s.", untold, exc_info=error)
                if crashes is not None:
                    crashes.append(error)

        if not self._seconds:
            call()
            return found[0] if found else None
        thread = threading.Thread(target=contextvars.copy_context().run, args=(call,), daemon=True)
        thread.start()
        thread.join(max(0.0, self._deadline - time.monotonic()))
        taken, given = time.monotonic() - self._start, self._deadline - self._start
        if thread.is_alive():
            sys.setswitchinterval(min(SWITCH, sys.getswitchinterval()))
            said = (
                "quietbit: the app is not done after %.1f s, and zero is released: answer-seconds of the policy is %g."
            )
            LOGGER.error(said, taken, self._seconds)
            return None
        LOGGER.info("quietbit: the app took %.1f s of the %.1f s that it has.", taken, given)
        return found[0] if found else None

    def wait(self) -> float:
        """Return the moment, as seconds since 1970, when it has come."""
        if not self._seconds:
            return time.time()
        missed = max(0, math.ceil((time.monotonic() - self._leave) / self._seconds))
        if missed:
            LOGGER.warning("quietbit: an answer was not ready at its moment: answer-seconds of the policy is short.")
        leave, stamp = self._leave + missed * self._seconds, self._stamp + missed * self._seconds
        while (left := leave - time.monotonic()) > 0:
            time.sleep(left)
        return stamp
