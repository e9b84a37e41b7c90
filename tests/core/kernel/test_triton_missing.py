"""Without triton the kernel of that name is one sentence; nothing else needs the package."""

from __future__ import annotations

import subprocess
import sys

from core.kernel.makers import make_sampler
from quietbit.kernel.reference import ReferenceKernel
from quietbit.kernel.rng import secure_rng


def test_a_missing_package_is_one_sentence():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from quietbit.errors import MissingDependency\n"
        "from quietbit.kernel.select import select\n"
        "try:\n    select('triton')\nexcept MissingDependency as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (
        run.stdout
        == "This needs the package triton, which is not installed: pip install '.[gpu]' in a checkout of quietbit.\n"
    )


def test_other_kernels_take_a_secure_rng():
    import numpy as np

    codes = ReferenceKernel().sample(make_sampler(), np.zeros(1000), secure_rng())
    assert 300 < int(codes.sum()) < 700  # 12 standard deviations around a half
