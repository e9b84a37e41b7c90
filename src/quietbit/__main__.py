"""``python -m quietbit``, where the command itself is not on the path."""

import os
import sys

from quietbit.cli.main import INTERRUPTED, main

if __name__ == "__main__":
    code = main()
    if (
        code == INTERRUPTED
    ):  # with -m, Python would end by the signal itself instead of with this code
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
