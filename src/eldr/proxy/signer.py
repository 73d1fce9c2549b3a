"""From the counts in a prefill answer to the request's signature, or to the reason why there is none.

Nothing here fails a request: whatever is wrong with the counts, the request is routed by load, which is
counted, and logged once an interval for each reason.
"""

import logging

from eldr.clock import Clock
from eldr.errors import PayloadError, ProfileError
from eldr.profile.artifact import Profile
from eldr.proxy.handoff import PrefillAnswer
from eldr.types import ExpertCounts, Vector
from eldr.wire import decode_counts

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 60.0
LEAST_COVERED = 0.5
"""Share of the prompt's tokens that the counts must cover to stand for all of it."""


class Signer:
    """Makes signatures as a profile's were made; without a profile (None) it makes none."""

    def __init__(self, profile: Profile | None, clock: Clock) -> None:
        self._profile, self._clock = profile, clock
        self._transform = None if profile is None else profile.signature_transform()
        self._logged_s: dict[str, float] = {}

    def sign(self, prefilled: PrefillAnswer) -> tuple[Vector | None, str | None]:
        """The signature [D] of a prefilled request, and why it is not handed off or routed as meant, if so.

        no_kv_params: the KV cache cannot be handed off, the decode worker prefills again; signature as usual.
        no_counts, bad_payload, other_profile (another shape or top-k), partial_counts (too few of the
        prompt's tokens), empty_signature: no signature. Without a profile the policy gives the reason.
        """
        signature, reason = self._signature(prefilled.counts)
        if prefilled.kv_params is None:
            reason = self._noted("no_kv_params", "the prefill worker's answer has no transfer parameters")
        return signature, reason

    def counts(self, payload: object) -> ExpertCounts:
        """The counts of a payload. Raises PayloadError, and ProfileError when the profile does not fit."""
        counts = decode_counts(payload)
        if self._profile is not None:
            layers, experts = counts.counts.shape
            self._profile.check_fits(layers, experts, counts.top_k)
        return counts

    def _signature(self, payload: object | None) -> tuple[Vector | None, str | None]:
        if self._transform is None:
            return None, None
        if payload is None:
            return None, self._noted("no_counts", "the prefill worker's answer has no expert counts")
        try:
            counts = self.counts(payload)
        except PayloadError as error:
            return None, self._noted("bad_payload", str(error))
        except ProfileError as error:
            return None, self._noted("other_profile", str(error))
        if counts.covered < LEAST_COVERED * counts.tokens:
            text = f"counts cover {counts.covered} of {counts.tokens} prompt tokens"
            return None, self._noted("partial_counts", text)
        signature = self._transform.transform(counts.counts)
        if signature is None:
            return None, self._noted("empty_signature", "the counts are zero once transformed")
        return signature, None

    def _noted(self, reason: str, text: str) -> str:
        now_s = self._clock.now_s()
        if now_s - self._logged_s.get(reason, -LOG_INTERVAL_S) >= LOG_INTERVAL_S:
            self._logged_s[reason] = now_s
            log.warning("fallback (%s): %s", reason, text)
        return reason
