"""Causes: KL."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix, Rival, Times

CAUSES = [
    Cause(
        "kl.sign",
        Kind.PROBE,
        what="The KL penalty pushes the model away from its start instead of holding it: a larger beta makes the KL "
        "larger.",
        rivals=(
            Rival("k1 estimator", "k1 may be negative on single batches; k2 and k3 never are"),
            Rival("kl.reference", "the KL is not 0 before the first step"),
        ),
        experiment=Experiment(
            "An update with the KL penalty alone brings the policy nearer to its reference.", probe="kl-sign"
        ),
        fix=Fix(
            "Add beta × KL to a loss that is minimized, with learner over reference in the order that the "
            "estimator wants: k3 is exp(d) − d − 1 with d = reference − learner."
        ),
        explains=("kl.runaway",),
    ),
    Cause(
        "kl.reference",
        Kind.PROBE,
        what="The reference is not the model that the run began with: the KL is above 0 before any update.",
        rivals=(
            Rival("policy.dropout-on", "in evaluation mode the KL at step 0 is 0"),
            Rival("logged after an update", "the first line is of a step with several updates"),
        ),
        experiment=Experiment("At step 0 in evaluation mode the KL to the reference is 0.", probe="reference"),
        fix=Fix(
            "Copy the reference from the very weights that train, adapters merged or switched off the same way, "
            "in the same precision and mode.",
            {"trl": {"disable_dropout": True, "sync_ref_model": False}},
        ),
        explains=("kl.runaway",),
    ),
    Cause(
        "kl.strangles",
        Kind.CURVE,
        what="The KL penalty is so heavy that the model can't leave its start, and the reward stays flat.",
        rivals=(
            Rival("optimizer.lr-small", "at beta 0 the model still does not move"),
            Rival("precision.update-underflow", "hardly any weight's bits change in a step"),
            Rival("sync.stale-weights", "the learner moves, the sampler does not"),
            Rival("advantage.dead-groups-low", "there is no reward signal for the penalty to fight"),
        ),
        experiment=Experiment(
            "At beta 0 the KL grows and the reward rises.",
            arms={"control": {}, "beta 0": {"learning.kl.beta": 0.0}},
            metric="reward/mean",
            smallest=0.05,
            steps=50,
        ),
        fix=Fix(
            "Lower beta to 0.001 or drop it.",
            {"uptrend": {"learning.kl.beta": 0.001}},
        ),
        explains=("optimizer.lr-small",),
    ),
    Cause(
        "kl.runaway",
        Kind.CURVE,
        what="The model moves ever further from its start without getting better at the held-out tasks.",
        rivals=(
            Rival("beta 0 by design", "the KL grows slowly and held-out accuracy rises with it: no fault"),
            Rival("optimizer.lr-large", "the gradient spikes and a third of the learning rate ends it"),
            Rival("kl.reference", "the KL was large at the first step already"),
        ),
        experiment=Experiment(
            "With beta 0.04 the KL stays below 0.5 at the same held-out accuracy.",
            arms={"control": {}, "beta 0.04": {"learning.kl.beta": 0.04}, "slower": {"learning.lr": Times(1 / 3)}},
            metric="kl/reference/mean",
            direction="down",
            smallest=0.1,
        ),
        fix=Fix(
            "Go back to the checkpoint before the climb, add or raise beta, and lower the learning rate.",
            {"uptrend": {"learning.kl.beta": 0.04, "learning.lr": Times(1 / 3)}},
        ),
        explains=("run.collapsed",),
    ),
    Cause(
        "kl.dead-group-pull",
        Kind.CURVE,
        what="Most groups are dead, so what gradient there is comes from the KL penalty and pulls the model back to "
        "its start.",
        rivals=(Rival("kl.strangles", "groups are alive and the penalty alone holds the model"),),
        experiment=Experiment(
            "At beta 0 the gradient of dead groups is exactly 0.",
            arms={"control": {}, "beta 0": {"learning.kl.beta": 0.0}},
            metric="gradient/norm/before",
            direction="down",
            smallest=0.0,
            steps=10,
        ),
        fix=Fix(
            "Bring the dead groups down first; until then keep them out of the loss, or set beta to 0.",
            {
                "uptrend": {"learning.kl.beta": 0.0, "sampling.resample": 2},
                "prime-rl": {"orchestrator.train.filter_zero_advantages": True},
            },
        ),
    ),
]
