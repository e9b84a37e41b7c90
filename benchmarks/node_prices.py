"""How long a fresh process takes to accept a request where the ledger holds many masked sums.

    python benchmarks/node_prices.py [mechanisms] [honest clients]

Every process reads the same ledger; the first has no prices beside it, the second finds those of
the first.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

PREPARE = """
from quietbit.node.ledger import FileLedger, mechanism_line, release_line
from quietbit.node.request import ProposedMechanism
ledger = FileLedger.create(policy.ledger, policy.counter)
for number in range({mechanisms}):
    proposed = ProposedMechanism.read(description_of(mechanism(number)))
    lines = [mechanism_line(proposed.identity, proposed.description),
             release_line(proposed.identity, {honest}, str(number), 1)]
    ledger.update(lambda _: lines)
"""
ACCEPT = """
import os, time
from quietbit.node.ledger import FileLedger
from quietbit.node.request import Request, SumPart
from quietbit.node.gate import LocalGate
gate = LocalGate(policy, FileLedger(policy.ledger, policy.counter), {{}})
part = SumPart("keys", {honest} + 100, 1, {honest} + 100, {honest}, "honest-but-curious")
request = Request(run=os.getpid(), round=1, node=1, dimension=42, mechanism=description_of(mechanism(0)), epsilon=1e6,
                   delta=1e-5, adjacency="replace-one", client=0, sum=part)
start = time.process_time()
gate.step(request)
print(f"{{time.process_time() - start:.2f}}")
"""
COMMON = """
from quietbit.design.solve import solve
from quietbit.design.table import DesignSpec
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.interpolated import InterpolatedMVU
from quietbit.node.policy import Policy
from quietbit.node.request import description_of
policy = Policy(epsilon=1e4, delta=1e-5, adjacency="replace-one", mechanisms=("imvu",), largest_clip=2.0, releases=1000,
                releases_per_day=1000, ledger="{folder}/ledger", counter="{folder}/counter", response_seconds=0.0,
                trust=("local", "secure-aggregation"), min_honest_clients={honest}, local_epsilon=1e5)
def mechanism(number):
    return InterpolatedMVU(solve(DesignSpec(2, 1, 0.3 + number / 100)), Ball(Norm.L2, 42))
"""


def run(code: str, **words: object) -> str:
    """Run code in a process of its own; return what it prints."""
    text = (COMMON + code).format(**words)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout.strip()


def main() -> None:
    """Print the seconds of the processor of three processes in turn."""
    mechanisms = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    honest = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    with tempfile.TemporaryDirectory() as folder:
        words = {"folder": Path(folder), "mechanisms": mechanisms, "honest": honest}
        run(PREPARE, **words)
        for name in ("without prices", "with prices", "again"):
            print(f"{mechanisms} sums of {honest}, {name}: {run(ACCEPT, **words)} s")


if __name__ == "__main__":
    main()
