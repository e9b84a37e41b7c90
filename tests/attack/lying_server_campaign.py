"""More of what `test_lying_server.py` tries, too long for every change: run it by hand, it prints
its counts.

    PYTHONPATH=src:tests python tests/attack/lying_server_campaign.py

Idea     (1) ten clients, t = 7: every way to lose three or fewer over the steps, who is drawn at
         random: the sum is exact; and every way to lose four: there is
         none. (2) different lists for fifty victims, against both models of the server. (3) All
         lies of larger cases than `test_lie_search.py` has.

    dropouts at every step, n = 10, t = 7: 70 exact with three or fewer, 70 closed with four
    different lists: 50 of 50 victims unmasked where the server is believed
    different lists: 0 of 500 requests answered where it may lie
    all with all, n = 5, t = 4, C = 1: exposed False, 65776 requests, 7185 lies
    all with all, n = 5, t = 4, C = 0: exposed False, 555670 requests, 62173 lies
    all with all, n = 5, t = 5, C = 1: exposed False, 32136 requests, 16 lies
    all with all, n = 4, t = 3, C = 1: exposed False, 10116 requests, 818 lies
    all with all, n = 4, t = 3, C = 0: exposed False, 52172 requests, 5326 lies
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np

from attack.lie_search import QUIET, TRUE, Search
from attack.test_lying_server import recovered, split, told
from federation.secagg.kit import Room, codes_for, identity, plan_of
from quietbit.errors import QuietbitError
from quietbit.secagg.plan import ProtocolError
from quietbit.secagg.server import simulate_secure_sum

STEPS = ("sharing", "masking", "confirming", "unmasking")


def dropouts() -> None:
    rng, exact, closed = np.random.default_rng(1), 0, 0
    people = {i: identity(i) for i in range(1, 11)}
    plan = plan_of(10, 7)
    codes = codes_for(plan)
    for lost in range(5):
        for steps in combinations_with_replacement(STEPS, lost):
            who = rng.choice(np.arange(1, 11), lost, replace=False).tolist()
            gone = {
                f"gone_before_{step}": [w for w, s in zip(who, steps, strict=True) if s == step]
                for step in STEPS
            }
            early = [*gone["gone_before_sharing"], *gone["gone_before_masking"]]
            try:
                found = simulate_secure_sum(plan, codes, identities=people, **gone)
            except ProtocolError:
                closed += 1
                if lost <= 3:
                    raise
                continue
            if lost > 3 or (found.total != sum(codes[i] for i in codes if i not in early)).any():
                raise RuntimeError(f"a wrong sum, or one that should not be: {gone}")
            exact += 1
    print(
        f"dropouts at every step, n = 10, t = 7: {exact} exact with three or fewer, {closed} closed with four"
    )


def lists() -> None:
    unmasked = answered = asked = 0
    for case in range(50):
        victim = case % 10 + 1
        room = Room(plan_of(10, 6, active=False, name=b"%d" % case)).dealt()
        partners, chosen = split(10, 6, victim)
        told(room, victim, partners)
        answers = {i: room.clients[i].unmask(chosen[i], {}, {}) for i in room.clients}
        keys = [recovered(answers, other, "pair_keys", 6) for other in partners]
        unmasked += recovered(answers, victim, "seeds", 6) is not None and None not in keys
        room = Room(plan_of(10, 7, name=b"%d" % case)).dealt()
        partners, chosen = split(10, 7, victim)
        vectors = told(room, victim, partners)
        masked = {i: vector[room.plan.payload_size :] for i, vector in vectors.items()}
        signed = {}
        for i in room.clients:
            try:
                signed[i] = room.clients[i].confirm(chosen[i])
            except QuietbitError:
                continue
        for i in room.clients:
            asked += 1
            try:
                room.clients[i].unmask(
                    chosen[i], {j: signed[j] for j in signed if j in chosen[i]}, masked
                )
                answered += 1
            except QuietbitError:
                continue
    print(f"different lists: {unmasked} of 50 victims unmasked where the server is believed")
    print(f"different lists: {answered} of {asked} requests answered where it may lie")


def lies() -> None:
    """Larger cases of `test_lie_search.py`."""
    for n, t, bad, terms in ((5, 4, 1, 1), (5, 4, 0, 1), (5, 5, 1, 2), (4, 3, 1, 2), (4, 3, 0, 2)):
        search = Search(
            n, t, frozenset(range(n - bad + 1, n + 1)), t - bad, terms=(TRUE, QUIET)[:terms]
        )
        print(
            f"all with all, n = {n}, t = {t}, C = {bad}: exposed {search.run() is not None},",
            end=" ",
        )
        print(f"{search.asked} requests, {search.leaves} lies", flush=True)


if __name__ == "__main__":
    dropouts()
    lists()
    lies()
