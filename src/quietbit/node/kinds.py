"""Kinds of releases, as requests and ledgers name them.

Idea     the ledger and the account find the answers to evaluations by the name of their run and by
         their family, which the policy lists. Whoever reads a request needs these words, and no
         ledger or policy.
"""

from __future__ import annotations

import json

__all__ = ["EVALUATIONS", "RESPONSE", "SCOUT", "text_of"]

RESPONSE = "response"  # the family that answers evaluations; the server sees each answer
SCOUT = "scout"  # the family that answers for a moving clip; scouts need it among the mechanisms
EVALUATIONS = "/evaluations"  # after a run's number, where its evaluations are noted
# The canonical line of JSON of a value.
text_of = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
