"""Fault injection: an exception at each line of some files, in whichever thread the line runs.

A tracer notes the lines that run in a call and in all threads below it; a second call raises at one
of them. Calls run side by side, each with a tracer of its own.
"""

import _thread
import contextlib
import sys
import threading

PATIENT = "glucose of patient 4711"
# How threads begin; `threading` has its own names, the last from Python 3.13 on.
STARTS = ("start_new_thread", "_start_new_thread", "_start_joinable_thread")


class Fault(BaseException):
    """What nobody expects."""

    def __init__(self):
        super().__init__(PATIENT)


class Tracer:
    """Note the lines of the files that run; raise when ``at`` is about to run for the first
    time.
    """

    def __init__(self, files, at=None):
        self.files = files
        self.at = at
        self.raised = False
        self.seen = {}  # with the name of the thread

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if code.co_filename not in self.files:
            return None
        if event == "line":
            line = (code.co_filename, code.co_name, frame.f_lineno)
            self.seen.setdefault(line, threading.current_thread().name)
            if line == self.at and not self.raised:
                self.raised = True
                raise Fault
        return self


@contextlib.contextmanager
def following():
    """Let every thread that is started meanwhile be traced as the thread that starts it."""

    def traced(start):
        def started(function, *arguments, **named):
            tracer = sys.gettrace()

            def run(*given):
                with contextlib.suppress(Fault):
                    sys.settrace(tracer)
                    function(*given)

            return start(run, *arguments, **named)

        return started

    places = [
        (module, name)
        for module in (_thread, threading)
        for name in STARTS
        if hasattr(module, name)
    ]
    assert any(module is threading for module, _ in places)
    before = [getattr(module, name) for module, name in places]
    for (module, name), start in zip(places, before, strict=True):
        setattr(module, name, traced(start))
    try:
        yield
    finally:
        for (module, name), start in zip(places, before, strict=True):
            setattr(module, name, start)


def under(tracer, call):
    """Return what a call returns, or the exception that it raises, under a tracer."""
    sys.settrace(tracer)
    try:
        return call()
    except BaseException as error:
        return error
    finally:
        sys.settrace(None)
