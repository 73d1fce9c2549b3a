"""Settings of what the router learns while it runs (eldr.adapt). Times in seconds."""

from typing import Annotated

from msgspec import Meta, Struct

from eldr.settings_units import Seconds


class AdaptConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What a router that routes by signatures may change by itself.

    refit: its centroids, and without a profile make the first ones. tune: its policy.
    interval_s: the least time between two looks at what it saw. share: of one core that they may take.
    window_s: how far back what it saw goes. lost_s: after so long a worker that is down has left, for this.
    save: file for the profile of now, with which the router begins if it is there, or None.
    """

    refit: bool = True
    tune: bool = True
    interval_s: Seconds = 30.0
    share: Annotated[float, Meta(gt=0, le=1)] = 0.1
    window_s: Seconds = 600.0
    lost_s: Seconds = 60.0
    save: str | None = None
