"""From expert counts to signatures, and how good the signatures are."""

from eldr.signature.transform import TRANSFORMATIONS, SignatureTransform

__all__ = ["TRANSFORMATIONS", "SignatureTransform"]
