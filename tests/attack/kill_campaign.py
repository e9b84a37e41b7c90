"""Kill -9 at a site that protects samples: between the steps of a round, and between any two writes
of its ledger.

    python tests/attack/kill_campaign.py 600

Each case starts a process that answers round after round, three private steps each, and kills
itself at one of its moments, chosen at random: before or after a batch is drawn, handed over or
closed, and before each write, truncation, forcing to disk and renaming of ledger and counter.
Afterwards every round of which a batch was drawn must be in the ledger, at most one more, and the
account of a sample must be that of all of them. `test_kills_between_steps.py` runs a few.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import disk
import numpy as np

from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.ball import Ball, Norm
from quietbit.mechanism.batch import LocalSteps, PoissonBatch
from quietbit.node import Policy, init
from quietbit.node.budget import account_of
from quietbit.node.gate import LocalGate
from quietbit.node.ledger import FileLedger
from quietbit.node.refusal import AnsweredBefore
from quietbit.node.request import ProposedMechanism, Request, description_of
from quietbit.privacy.account import Account

DIMENSION, SAMPLES, STEPS, MOMENTS = 42, 40, 3, 200
EACH = 50  # kills per ledger
SITE = LocalSteps(PoissonBatch(Gaussian(Ball(Norm.L2, DIMENSION), 2.0), 10, 0.25), STEPS, 0.5, 8)


def asked(number: int) -> Request:
    return Request(
        run=7,
        round=number,
        node=1,
        dimension=DIMENSION,
        mechanism=description_of(SITE),
        epsilon=1e6,
        delta=1e-5,
        adjacency="zero-out",
        unit="sample",
        client=0,
    )


def gate_of(policy: Policy) -> LocalGate:
    return LocalGate(policy, FileLedger(policy.ledger, policy.counter), {})


def train_until_killed(policy: Policy, said: int, moments: int) -> None:
    """Answer rounds; at the last of so many moments this process is gone."""
    shim = disk.control()
    tell = os.write
    shim.disk_arm(moments, disk.WRITES, disk.KILL)

    def moment() -> None:
        shim.disk_moment(disk.WRITES)

    held = gate_of(policy)
    while True:
        accepted = held.accept(asked(held.ledger.read().last_round("7") + 1))
        moment()
        for step in range(STEPS):
            drawn = accepted.draw(SAMPLES)
            tell(said, b"d" if step else b"D")  # the data of a round were touched
            moment()
            accepted.add(np.zeros((len(drawn), DIMENSION), dtype=np.float32))
            moment()
            accepted.step()
            moment()
        accepted.release(None)
        tell(said, b"R")
        moment()


def campaign(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill so many processes; return what they did. An assertion fails where anything was not
    counted.
    """
    policy = init(
        folder / "policy.toml",
        epsilon=1e6,
        adjacency="zero-out",
        largest_clip=1.0,
        releases=10**6,
        unit="sample",
        releases_per_day=10**6,
        data_set="ward 7",
        mechanisms=("gaussian",),
        response_seconds=0.0,
    )
    rng, done = (
        np.random.default_rng(seed),
        {"kills": kills, "rounds": 0, "steps": 0, "releases": 0, "noted": 0},
    )

    def noted() -> int:
        return (
            FileLedger(policy.ledger, policy.counter).read().releases
        )  # as a new process reads it

    gate_of(policy).accept(asked(1)).release(None)  # what it prices and compiles, children have
    after = 1
    for _ in range(kills):
        before, moments = after, int(rng.integers(1, MOMENTS))
        hear, say = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                train_until_killed(policy, say, moments)
            finally:
                os._exit(4)
        os.close(say)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        with os.fdopen(hear, "rb") as pipe:
            heard = pipe.read()
        rounds, after = heard.count(b"D"), noted()
        assert rounds <= after - before <= rounds + 1, (heard, before, after)
        done["rounds"] += rounds
        done["steps"] += rounds + heard.count(b"d")
        done["releases"] += heard.count(b"R")
    done["noted"] = after
    (cap,) = policy.caps
    cost = (
        ProposedMechanism.read(description_of(SITE))
        .cost(cap.adjacency, 0, cap.unit)
        .at_least(policy.least_epsilon)
    )
    books = FileLedger(policy.ledger, policy.counter).read()
    account = account_of(books, cap, 0, policy.least_epsilon, policy.data_set)
    assert [times for _, times in account.entries] == [done["noted"]]
    assert account.epsilon() == Account(cap, "adaptive").spend(cost, done["noted"]).epsilon()
    try:
        gate_of(policy).accept(asked(books.last_round("7")))
    except AnsweredBefore:
        return done
    raise AssertionError("a round was answered twice")


def main(kills: int, seed: int = 1) -> None:
    """Spread the kills over new ledgers, which are read anew after each, and print the sums as
    they grow.
    """
    if disk.PRELOAD not in os.environ:  # start again with the disk that kills
        with tempfile.TemporaryDirectory() as place:
            library = disk.compiled(Path(place))
            words = [sys.executable, __file__, str(kills), str(seed)]
            sys.exit(subprocess.run(words, env=disk.environment(library), check=False).returncode)
    whole: Counter[str] = Counter()
    for number in range(0, kills, EACH):
        with tempfile.TemporaryDirectory() as place:
            whole.update(campaign(Path(place), min(EACH, kills - number), seed + number))
        print(dict(whole), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*map(int, sys.argv[1:]))
