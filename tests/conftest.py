"""Settings of all tests."""

from hypothesis import settings

# A machine that also runs engines may take long for any one example; pytest's own timeout ends what hangs.
settings.register_profile("eldr", deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=2000)
settings.load_profile("eldr")
