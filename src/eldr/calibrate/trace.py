"""Calibration on an engine with ELDR's connector, which returns both counts on request."""

from eldr import wire
from eldr.calibrate.observation import Observation, token_usage
from eldr.errors import CalibrationError, PayloadError
from eldr.types import ExpertCounts

NO_COUNTS = (
    "the answer carries no expert counts; does this engine serve a mixture-of-experts model, "
    "and is EldrConnector in its --kv-transfer-config?"
)


class Trace:
    """The `Source` for ELDR's connector: counts of prefill and decode in `kv_transfer_params`."""

    name = "trace"

    def body(self, body: dict[str, object]) -> dict[str, object]:
        return {**body, "kv_transfer_params": {"eldr": {"trace": True}}}

    def parse(self, answer: dict[str, object]) -> Observation:
        params = answer.get("kv_transfer_params")
        if not isinstance(params, dict) or "eldr" not in params:
            raise CalibrationError(NO_COUNTS)
        if "eldr_decode" not in params:
            raise CalibrationError("the answer has no decode counts; it ended before its second token")
        prefill, decode = _read(params["eldr"]), _read(params["eldr_decode"])
        if prefill.covered < prefill.tokens:
            raise CalibrationError(f"counts of {prefill.covered} of {prefill.tokens} prompt tokens only")
        _, output = token_usage(answer)
        return Observation(prefill.counts, decode.counts, prefill.top_k, prefill.tokens, output)


def _read(payload: object) -> ExpertCounts:
    try:
        return wire.decode_counts(payload)
    except PayloadError as error:
        raise CalibrationError(str(error)) from error
