"""Calibration: the expert counts of labelled prompts, in prefill and in decode, from a running engine."""
