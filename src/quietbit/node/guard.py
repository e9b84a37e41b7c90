"""The outermost frame of an answer: whatever happens, one reply leaves at a fixed moment.

Idea     an engine sends the text of an exception to the server, at once. So the engine's thread
         does nothing here but wait. A worker thread decides, calls the app and makes the reply; a
         keeper thread watches the clock. As soon as a request is accepted, the outbox holds a
         reply that does not depend on the app (the zero release); the worker may replace it, and
         the keeper closes the outbox at the moment of the answer, whatever the worker is doing.

What an app can do to the engine's thread from its own, and what happens then:

| the app | the engine's thread |
|---|---|
| set a signal handler that raises in the main thread | handlers are replaced while it waits |
| calls `_thread.interrupt_main` | the same |
| lowers the recursion limit or a resource limit of the process | the keeper puts the old one back |
| leaves no memory | an exception in here is caught; the wait goes on, and the reply is there |

A process that ends (`os._exit`, a crash of native code, the system's out-of-memory killer) sends
nothing. Signals that ask the process to end wait
until the answer has left.

Moment   how long an app takes, and whether it fails, depends on its data. So the moment of an
         answer is computed when its request is accepted, from the clock and the owner's policy
         alone: `response-seconds` later, at a multiple of `GRAIN` of the clock; stamps that travel
         with an answer say that moment.
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

import _thread
import contextlib
import contextvars
import importlib
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar, final

from quietbit.errors import require

__all__ = ["GRAIN", "AnswerTime", "Outbox", "guarded", "log_quietly", "quiet_handlers"]

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
                # Python raises it in the main thread alone: anywhere else the app has.
                if threading.current_thread() is threading.main_thread():
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


Reply = TypeVar("Reply")
Work: TypeAlias = "Callable[[Outbox[Reply]], None]"
SLICE = 0.05  # seconds between two checks of the limits of the process
GRACE = 30.0  # seconds without a sign of life until a thread of ours is taken for dead
LIMITS = (
    "RLIMIT_AS",
    "RLIMIT_DATA",
    "RLIMIT_STACK",
    "RLIMIT_NOFILE",
    "RLIMIT_NPROC",
    "RLIMIT_FSIZE",
    "RLIMIT_CPU",
)


@final
class Outbox(Generic[Reply]):
    """The reply that would leave now, and its moment; the worker fills it, the keeper closes it.

    ``leaving`` is the reply that leaves when ``closed`` is true; ``finish`` is called with it
    before. ``restore_interrupt`` lets Ctrl-C interrupt the engine's thread again when the answer
    has left: not where the process goes on with other answers, which a late app could interrupt.
    """

    def __init__(
        self,
        otherwise: Reply,
        finish: Callable[[Reply], None] = lambda reply: None,
        *,
        restore_interrupt: bool = True,
    ) -> None:
        """Begin with the reply that leaves where nothing is accepted."""
        self.leaving = otherwise
        self.closed = False
        self.moment: AnswerTime | None = None
        self._reply = otherwise
        self._finish = finish
        self.started = False
        self.abandoned = False  # before the worker has begun: it does nothing then
        self._working = False
        self._worked = False
        self._begun = time.monotonic()
        self._beat = self._begun
        self._entry = _thread.allocate_lock()  # taken by the keeper, and by no second one
        self._changed = _thread.allocate_lock()  # released when the worker has something to say
        self._left = _thread.allocate_lock()  # released when the outbox is closed
        self._changed.acquire()
        self._left.acquire()
        self._limits = _Limits()
        self._signals = _Signals(restore_interrupt)

    @property
    def reply(self) -> Reply:
        """What would leave now."""
        return self._reply

    def accept(self, moment: AnswerTime, reply: Reply) -> None:
        """Fix the moment, and what leaves then unless something else is put in."""
        self.moment = moment  # first: a reply that depends on the request must not leave before it
        self._reply = reply
        self._wake()

    def put(self, reply: Reply) -> None:
        """Replace the reply; after the outbox is closed this changes nothing."""
        self._reply = reply

    def start(self, work: Work[Reply]) -> None:
        """Start worker and keeper, once, in threads that no hook of `threading` reaches."""
        if self.started:
            return
        self._signals.disarm()
        variables = contextvars.copy_context()
        _thread.start_new_thread(self._keep, (variables, work))
        self.started = True

    def wait(self) -> None:
        """Wait a while; do the keeper's work where it shows no sign of life."""
        if self._left.acquire(True, SLICE) or self.closed:
            return
        if time.monotonic() - self._beat > GRACE:
            self.abandoned = True
            self._watch()

    def release_signals(self) -> None:
        """Give the engine back its own signal handlers."""
        self._signals.rearm()

    def _keep(self, variables: contextvars.Context, work: Work[Reply]) -> None:
        while not self.closed:
            try:
                self._limits.restore_recursion()
                if self._entry.acquire(False):
                    _thread.start_new_thread(variables.run, (self._work, work))
                self._watch()
            except BaseException:  # noqa: S112  (nothing ends this loop or is logged here)
                continue

    def _work(self, work: Work[Reply]) -> None:
        try:
            if self.abandoned:
                return
            self._working = True
            work(self)
            if self.closed:
                log_quietly(
                    logging.WARNING,
                    "an answer was not ready at its moment: raise response-seconds of the policy",
                )
        except BaseException as error:
            log_quietly(logging.ERROR, "an answer failed, and the server is not told", error)
        finally:
            self._worked = True
            self._wake()

    def _watch(self) -> None:
        """Wait for a decision as long as it takes, then for the moment, and close the outbox."""
        while not self._worked and (self.moment is None or not self.moment.seconds):
            self._changed.acquire(True, SLICE)
            self._live()
            if not self._working and time.monotonic() - self._begun > GRACE:
                break
        moment = self.moment
        while moment is not None and (left := moment.left()) > 0:
            time.sleep(min(left, SLICE))
            self._live()
        self._close()

    def _live(self) -> None:
        self._beat = time.monotonic()
        self._limits.restore()

    def _wake(self) -> None:
        if self._changed.locked():
            self._changed.release()

    def _close(self) -> None:
        if self.closed:
            return
        self.leaving = self._reply
        try:
            self._finish(self.leaving)
        except BaseException:
            self._finish(self.leaving)
        finally:
            self.closed = True
            if self._left.locked():
                self._left.release()


def guarded(outbox: Outbox[Reply], work: Work[Reply]) -> Reply:
    """Return the reply that ``work`` leaves in the outbox, at the moment it names; raise nothing.

    ``work`` decides, and calls `Outbox.accept` before the app is called, then `Outbox.put`; it runs
    in a thread of its own. Where it returns without having accepted, its reply leaves at once.
    """
    try:
        return _held(outbox, work)
    except BaseException:  # between two of its lines: it goes on where it was
        return _held(outbox, work)


def _held(outbox: Outbox[Reply], work: Work[Reply]) -> Reply:
    """Hold the engine's thread until the outbox is closed.

    Where an app has lowered the recursion limit, no function can be called from here until the
    keeper has put it back; so what follows an exception is free of calls.
    """
    while not outbox.closed:
        try:
            outbox.start(work)
            outbox.wait()
        except BaseException:
            if not outbox.started:
                outbox.abandoned = True  # a worker that begins from now on does nothing
                return outbox.leaving
    try:
        outbox.release_signals()
    except BaseException:
        return outbox.leaving
    return outbox.leaving


def log_quietly(level: int, text: str, error: BaseException | None = None) -> None:
    """Write a line to the log; drop whatever a handler, a filter or the error itself raises."""
    try:
        LOGGER.log(level, "quietbit: %s.", text, exc_info=error)
    except BaseException:
        return


def quiet_handlers() -> None:
    """Let no log handler of this process raise into the code that logs, from now on.

    `logging` catches what the standard library's handlers raise; a handler of an app's may raise
    into an engine that then reports it to the server.
    """
    if not hasattr(logging.Logger.handle, "__wrapped__"):
        handle = logging.Logger.handle

        def quietly(self: logging.Logger, record: logging.LogRecord) -> None:
            try:
                handle(self, record)
            except BaseException:
                return

        quietly.__wrapped__ = handle  # type: ignore[attr-defined]
        logging.Logger.handle = quietly  # type: ignore[method-assign]


@final
class _Limits:
    """Limits of this process as they were before the app ran."""

    def __init__(self) -> None:
        self._recursion = sys.getrecursionlimit()
        self._resource: Any = None
        self._soft: dict[int, int] = {}
        try:
            self._resource = importlib.import_module("resource")
        except ImportError:  # on Windows
            return
        for name in LIMITS:
            number = getattr(self._resource, name, None)
            if number is not None:
                self._soft[number] = self._resource.getrlimit(number)[0]

    def restore_recursion(self) -> None:
        """Put back the recursion limit, where it was lowered."""
        if sys.getrecursionlimit() < self._recursion:
            sys.setrecursionlimit(self._recursion)

    def restore(self) -> None:
        """Put back what was changed, as far as the system allows."""
        self.restore_recursion()
        for number, soft in self._soft.items():
            now, hard = self._resource.getrlimit(number)
            if now != soft:
                with contextlib.suppress(OSError, ValueError):  # a hard limit stays where it is
                    self._resource.setrlimit(number, (soft, hard))


@final
class _Signals:
    """Signal handlers of this process that could raise into the thread that waits."""

    def __init__(self, restore_interrupt: bool) -> None:
        self._restore_interrupt = restore_interrupt
        self._before: dict[int, Any] = {}
        self._process = os.getpid()

    def disarm(self) -> None:
        """Replace every handler that is Python code; only the main thread gets signals."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, signal.Handlers):
                self._before[number] = handler
                signal.signal(number, self._drop)

    def rearm(self) -> None:
        """Put back Python's own handlers, and the engine's of signals that end a process.

        An app's handlers stay disarmed: their exceptions would be raised in the engine's frames. So
        does the engine's handler of SIGINT, which an app that is late could still trigger with
        `_thread.interrupt_main`.
        """
        for number, handler in self._before.items():
            engine = str(getattr(handler, "__module__", "")).partition(".")[0]
            ends = number != signal.SIGINT and engine in ("flwr", "nvflare")
            interrupts = handler is signal.default_int_handler and self._restore_interrupt
            if interrupts or ends:
                signal.signal(number, handler)

    def _drop(self, number: int, frame: object) -> None:
        """Do nothing; in a process forked from this one, do what the system does by default."""
        if os.getpid() != self._process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
