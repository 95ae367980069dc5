"""Faults that only proofs of space know; both are final, so asking again with the same input is pointless."""

from gpupool.core.errors import InvalidInputError, NotFoundError


class NoProofError(NotFoundError):
    """No proof fits these line points."""

    code = "no_proof"
    default_remedy = (
        "Check plot id, level and challenge. If they are right, the plot file may be damaged at this place."
    )


class AmbiguousProofError(NoProofError):
    """More than one proof fits these line points, and nothing tells which one the plot holds."""

    code = "ambiguous_proof"
    default_remedy = "Send the challenge, or both line points, so that the right one can be told."


class InvalidProofError(InvalidInputError):
    """The proof of space is not valid."""

    code = "invalid_proof"
    default_remedy = "Check plot id, k and challenge; a proof is valid for one of each only."
