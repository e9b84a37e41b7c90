"""When an answer leaves a node: at a moment fixed before the app begins, whatever the app does.

Idea     how long an app takes, and whether it fails, depends on its data. So the moment of an
         answer is computed when its request is accepted, from the clock and the owner's policy
         alone: `response-seconds` later, at a multiple of `GRAIN` of the clock. The app runs in a
         thread of its own. If it fails or is not done in time, the answer is that of the zero
         update, at the same moment (`node.guard`); stamps that travel with an answer say that
         moment.
Symbols  T: `response-seconds`. The app has T less the time reserved for clipping, randomising and
         packing: a quarter of T, at most `RESERVED` seconds; and less what drawing the noise of
         local steps takes, all of which an app may leave out, at `NUMBERS` per second. A quarter of
         T is always the app's; a request whose noise needs more than is left is refused.

T is a constant: a deadline that followed earlier apps would be an answer about the data at every
change. An owner finds it in the node's log, which says how long apps take. T = 0 waits for nothing:
simulations, whose nodes belong to nobody. What is left (apps that overrun, processes that end) is
in docs/explanation/threat-model.md, "Time".
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
NUMBERS = 4e6  # of noise that a slow core draws, decodes and adds up per second; 2e7 were measured
SWITCH = 1e-4  # seconds until an abandoned app must hand the interpreter over
Result = TypeVar("Result")


@final
class AnswerTime:
    """The moment of one answer: made when the request is accepted; then `run` the app."""

    def __init__(self, seconds: float, numbers: int = 0) -> None:
        """Fix the moment, ``seconds`` from now; 0 waits for nothing.

        ``numbers`` of noise may be left to draw after the app. Where that takes too long it is
        refused.
        """
        reserved = self.check(seconds, numbers)
        now = time.time()
        self._start = time.monotonic()
        self._seconds = _in_grains(seconds)
        self._stamp = _in_grains(now + self._seconds)
        self._leave = self._start + self._stamp - now
        self._deadline = self._leave - reserved

    @staticmethod
    def check(seconds: float, numbers: int = 0) -> float:
        """Return the seconds reserved after the app; refuse noise that leaves the app no time."""
        response_seconds = _in_grains(seconds)
        reserved = min(response_seconds / 4, RESERVED) + numbers / NUMBERS
        most = response_seconds * 3 / 4
        if response_seconds:
            require(
                reserved <= most,
                "seconds to draw the noise of local steps",
                reserved,
                f"at most {most:g}, three quarters of the node's response-seconds",
                "ask for fewer local steps, or have the node's owner raise response-seconds",
            )
        return reserved

    def run(
        self,
        app: Callable[[], Result],
        crashes: list[BaseException] | None = None,
        *,
        simulated: bool = False,
    ) -> Result | None:
        """Return what the app returns in time; None where it fails or is late, which the log says.

        Everything that an app can raise is such a failure, and is added to ``crashes``; but where
        nothing is waited for, Ctrl-C is the user's. Of a ``simulated`` node's app, which whoever
        runs the simulation is told about, the log says no more than that it failed.
        """
        results: list[Result] = []
        untold = "" if simulated else ", and the server is not told"

        def call() -> None:
            try:
                results.append(app())
            except KeyboardInterrupt:
                if not self._seconds:  # in the thread of its own an app has raised it itself
                    raise
                LOGGER.error("quietbit: the app interrupted itself%s.", untold)
            except BaseException as error:  # SystemExit, too, must look like any other failure
                if crashes is not None:
                    crashes.append(error)
                LOGGER.error("quietbit: the app failed%s.", untold, exc_info=error)

        if not self._seconds:
            call()
            return results[0] if results else None
        variables = contextvars.copy_context()
        thread = threading.Thread(target=variables.run, args=(call,), daemon=True)
        thread.start()
        thread.join(max(0.0, self._deadline - time.monotonic()))
        taken = time.monotonic() - self._start
        if thread.is_alive():
            sys.setswitchinterval(min(SWITCH, sys.getswitchinterval()))
            LOGGER.error(
                "quietbit: the app is not done after %.1f s, and zero is released: "
                "response-seconds of the policy is %g.",
                taken,
                self._seconds,
            )
            return None
        given = self._deadline - self._start
        LOGGER.info("quietbit: the app took %.1f s of the %.1f s that it has.", taken, given)
        return results[0] if results else None

    @property
    def seconds(self) -> float:
        """How long after its request an answer leaves; 0 waits for nothing."""
        return self._seconds

    @property
    def stamp(self) -> float:
        """The moment, as seconds since 1970; now, where nothing is waited for."""
        if not self._seconds:
            return time.time()
        return self._stamp

    def left(self) -> float:
        """Return the seconds until the moment; below 0 it has passed."""
        if not self._seconds:
            return 0.0
        return self._leave - time.monotonic()


def _in_grains(seconds: float) -> float:
    """Return the next multiple of `GRAIN`."""
    return math.ceil(seconds / GRAIN) * GRAIN
