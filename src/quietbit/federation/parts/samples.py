"""Privacy of single samples: a site's gate draws a batch in secret, clips and randomises it.

Idea     where this section is present the privacy unit is one sample of a site's data, not the
         client. The gate draws the batch; the app computes one gradient per drawn sample and hands
         them over (`federation.batch`). An app that hands nothing over would spend the budget on
         noise: the node's log says so, and a simulation ends with its first round.
Source   docs/explanation/threat-model.md says what no gate can check of an app's rows.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

from attrs import frozen

from quietbit.errors import require
from quietbit.federation.fields import Real, Whole, choice
from quietbit.federation.messages import BatchFault, UnusedBatch
from quietbit.federation.part import Part
from quietbit.federation.terms import Section, Terms, given
from quietbit.mechanism.projected import MOST_SAMPLES
from quietbit.target import Unit

__all__ = ["Samples", "Sampling"]


@final
@frozen
class Samples(Section):
    """``[samples]``: about how many a site has (``dataset_size``), and their share in a batch.

    The share is the ``sampling_rate``. With ``steps`` a site takes that many private steps of
    ``learning_rate`` per round, and sends the difference of models with ``bits`` bits per
    coordinate. A simulation knows the samples of its clients and needs no field.
    """

    title: ClassVar[str] = "samples"
    unit: ClassVar[Unit] = Unit.SAMPLE

    dataset_size: int | None = choice(Whole(1, MOST_SAMPLES))
    sampling_rate: float | None = choice(Real(at_most=1.0))
    steps: int | None = choice(Whole(1))
    learning_rate: float | None = choice(Real())
    bits: int | None = choice(Whole(1, 8))

    def check(self) -> None:
        """Refuse options of local steps without them, and steps without a learning rate."""
        if self.steps is None:
            rule = "left out unless sites take local steps, by samples.steps"
            require(self.learning_rate is None, "samples.learning_rate", self.learning_rate, rule)
            require(self.bits is None, "samples.bits", self.bits, rule)
            return
        rule = "given where sites take local steps: the learning rate of each"
        require(self.learning_rate is not None, "samples.learning_rate", self.learning_rate, rule)

    def check_engine(self, plan: Terms) -> None:
        """Require about how many samples a site has, and the norm of its account."""
        given(
            plan, "samples.dataset_size", " where samples are protected: about how many a site has"
        )
        norm = plan.mechanism.norm.value
        require(norm == "l2", "mechanism.norm", norm, "l2 where samples are protected")

    def client(self, terms: Terms, asked: str) -> Sampling | None:
        """Return the client's half, of a turn that makes an update."""
        return None if asked else Sampling()

    def options(self) -> dict[str, Any]:
        """Return the batch options as `calibrate` and `site_release` call them."""
        known = {
            "sampling_rate": self.sampling_rate,
            "local_steps": self.steps,
            "local_rate": self.learning_rate,
            "local_bits": self.bits,
        }
        return {name: value for name, value in known.items() if value is not None}


@final
class Sampling(Part):
    """The client's half: the gate was handed the gradients, so the app's answer plays no part."""

    section: ClassVar[str] = "samples"

    def handed_over(self, drawn: int | None, added: int) -> bool:
        """Raise where no batch was drawn, or none of the drawn samples has a gradient."""
        if drawn is None:
            raise UnusedBatch(BatchFault.NOT_DRAWN)
        if drawn and not added:
            raise UnusedBatch(BatchFault.NOTHING_ADDED)
        return True
