"""From the counts in a prefill answer to the request's signature, or to the reason why there is none.

Nothing here fails a request: whatever is wrong with the counts, the request is routed by load, which is
counted, and logged once an interval for each reason.
"""

import logging
from typing import NamedTuple

from eldr.clock import Clock
from eldr.errors import PayloadError, ProfileError
from eldr.profile.artifact import Profile
from eldr.proxy.handoff import PrefillAnswer
from eldr.proxy.seldom import Seldom
from eldr.types import ExpertCounts, Vector
from eldr.wire import decode_counts

log = logging.getLogger(__name__)

LEAST_COVERED = 0.5
"""Share of the prompt's tokens that the counts must cover to stand for all of it."""


class Signed(NamedTuple):
    """What a prefill answer tells of its experts.

    signature: [D], or None. reason: why the request is not handed off or routed as meant, if so.
    counts: that the signature was made of, or that one could be made of by a profile of this model.
    """

    signature: Vector | None = None
    reason: str | None = None
    counts: ExpertCounts | None = None


class Signer:
    """Makes signatures as a profile's were made; without a profile (None) it makes none.

    learns: counts are read without a profile, too, since somebody wants to make one of them.
    """

    def __init__(self, profile: Profile | None, clock: Clock, *, learns: bool = False) -> None:
        self._seldom, self._learns = Seldom(clock), learns
        self.use(profile)

    def use(self, profile: Profile | None) -> None:
        """Make signatures as another profile's were made, from now on."""
        self._profile = profile
        self._fits: tuple[int, ...] | None = None
        self._transform = None if profile is None else profile.signature_transform()

    def sign(self, prefilled: PrefillAnswer) -> Signed:
        """The signature of a prefilled request. Reasons:

        no_kv_params: the KV cache cannot be handed off, the decode worker prefills again; signature as usual.
        no_counts, bad_payload, other_profile (another shape or top-k), partial_counts (too few of the
        prompt's tokens), empty_signature: no signature. Without a profile the policy gives the reason.
        """
        signed = self._signed(prefilled.counts)
        if prefilled.kv_params is None:
            reason = self._noted("no_kv_params", "the prefill worker's answer has no transfer parameters")
            signed = signed._replace(reason=reason)
        return signed

    def counts(self, payload: object) -> ExpertCounts:
        """The counts of a payload. Raises PayloadError, and ProfileError when the profile does not fit."""
        counts = decode_counts(payload)
        self._check_fits(counts)
        return counts

    def _check_fits(self, counts: ExpertCounts) -> None:
        shape = (*counts.counts.shape, counts.top_k)
        if self._profile is not None and shape != self._fits:
            self._profile.check_fits(*shape)
            self._fits = shape

    def _signed(self, payload: object | None) -> Signed:
        if self._transform is None and not self._learns:
            return Signed()
        if payload is None:
            return self._unsigned("no_counts", "the prefill worker's answer has no expert counts")
        try:
            counts = decode_counts(payload)
        except PayloadError as error:
            return self._unsigned("bad_payload", str(error))
        if counts.covered < LEAST_COVERED * counts.tokens:
            text = f"counts cover {counts.covered} of {counts.tokens} prompt tokens"
            return self._unsigned("partial_counts", text)
        if self._transform is None:
            return Signed(counts=counts)
        try:
            self._check_fits(counts)
        except ProfileError as error:
            return self._unsigned("other_profile", str(error))._replace(counts=counts)
        signature = self._transform.transform(counts.counts)
        if signature is None:
            return self._unsigned("empty_signature", "the counts are zero once transformed")
        return Signed(signature, counts=counts)

    def _unsigned(self, reason: str, text: str) -> Signed:
        """No signature, and why; without a profile the policy gives the reason."""
        return Signed() if self._transform is None else Signed(reason=self._noted(reason, text))

    def _noted(self, reason: str, text: str) -> str:
        if self._seldom(reason):
            log.warning("fallback (%s): %s", reason, text)
        return reason
