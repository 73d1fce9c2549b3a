"""Expert-locality-aware decode routing for mixture-of-experts models on vLLM."""

from importlib.metadata import version

__version__ = version("eldr")
