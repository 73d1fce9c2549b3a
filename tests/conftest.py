"""Settings of all tests."""

import gc
import os

# The tests run in one process a core. Threads of libraries beside that wait for each other, on a busy machine
# for minutes. Set before any test imports numpy or torch, and passed on to what the tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

# A machine that also runs engines may take long for any one example; pytest's own timeout ends what hangs.
settings.register_profile("eldr", deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=2000)
settings.load_profile("eldr")


def pytest_collection() -> None:
    """What tests import stays to the end: the garbage collector need not go through it again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
