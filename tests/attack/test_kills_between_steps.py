"""Kill -9 at a site that protects samples: between the steps of a round, and between any two writes
of its ledger.

Each case starts a process that answers round after round, three private steps each, and kills
itself at one of its moments, chosen at random: before or after a batch is drawn, handed over or
closed, and before each write, truncation, forcing to disk and renaming of ledger and counter.
Afterwards every round of which a batch was drawn must be in the ledger, at most one more, and the
account of a sample must be that of all of them.
"""

import os
import signal

import numpy as np
import pytest

from attack import disk
from federation.node.makers import BALL, DIMENSION, books, declines, gate_of, keeper, request
from quietbit.mechanism.additive import Gaussian
from quietbit.mechanism.batch import LocalSteps, PoissonBatch
from quietbit.node.budget import account_of
from quietbit.node.refusal import AnsweredBefore
from quietbit.privacy.account import Account

SAMPLES, STEPS, MOMENTS, MANY = 40, 3, 200, 10**6
SITE = LocalSteps(PoissonBatch(Gaussian(BALL, 2.0), 10, 0.25), STEPS, 0.5, 8)
RULES = {
    "unit": "sample",
    "data_set": "ward 7",
    "adjacency": "zero-out",
    "epsilon": 1e6,
    "releases": MANY,
    "releases_per_day": MANY,
}


def asked(number):
    return request(number, SITE, unit="sample", adjacency="zero-out")


def train_until_killed(rules, said, moments):
    """Answer rounds; at the last of so many moments this process is gone."""
    shim, tell = disk.control(), os.write
    shim.disk_arm(moments, disk.WRITES, disk.KILL)
    gate = gate_of(rules)
    while True:
        accepted = gate.accept(asked(gate.ledger.read().last_round("7") + 1))
        shim.disk_moment(disk.WRITES)
        for step in range(STEPS):
            drawn = accepted.draw(SAMPLES)
            tell(said, b"d" if step else b"D")  # the data of a round were touched
            shim.disk_moment(disk.WRITES)
            accepted.add(np.zeros((len(drawn), DIMENSION), dtype=np.float32))
            shim.disk_moment(disk.WRITES)
            accepted.step()
            shim.disk_moment(disk.WRITES)
        accepted.release(None)
        tell(said, b"R")
        shim.disk_moment(disk.WRITES)


def killed(rules, moments):
    """Return what a process said until it was killed."""
    hear, say = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            train_until_killed(rules, say, moments)
        finally:
            os._exit(4)
    os.close(say)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with os.fdopen(hear, "rb") as pipe:
        return pipe.read()


def campaign(folder, kills):
    """Kill so many processes; fail where anything was not counted."""
    gate, rng = keeper(folder, **RULES), np.random.default_rng(1)
    gate.accept(asked(1)).release(None)  # what it prices and compiles, children have
    noted, heard = 1, b""
    for _ in range(kills):
        said = killed(gate.rules, int(rng.integers(1, MOMENTS)))
        before, noted = noted, books(folder).releases
        rounds = said.count(b"D")
        assert rounds <= noted - before <= rounds + 1, (said, before, noted)
        heard += said
    assert 0 < heard.count(b"R") < noted
    found, (cap,) = books(folder), gate.rules.caps
    account = account_of(found, cap, data_set="ward 7")
    cost = asked(1).proposed().cost(cap.adjacency, 0, cap.unit)
    assert [times for _, times in account.entries] == [noted]
    assert account.epsilon() == Account(cap, "adaptive").spend(cost, noted).epsilon()
    declines(gate, AnsweredBefore, asked(found.last_round("7")))


CAMPAIGN = """
import pathlib, sys
from attack.test_kills_between_steps import campaign
campaign(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.mark.skipif(not disk.is_possible(), reason="needs a C compiler on Linux")
@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.long)])
def test_every_round_that_was_begun_is_in_the_ledger(tmp_path, kills):
    disk.run(disk.compiled(tmp_path), CAMPAIGN, tmp_path, kills)
