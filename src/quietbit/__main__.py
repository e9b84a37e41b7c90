"""``python -m quietbit``, where the command itself is not on the path."""

import os
import sys

from quietbit.cli.main import INTERRUPTED, main

if __name__ == "__main__":
    code = main()
    if code == INTERRUPTED:
        # With -m, Python would be ended by the signal itself, and its exit status be another one.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
