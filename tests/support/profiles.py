"""Profiles for the mock engine's model: two layers, eight experts, two for each of four domains."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eldr.profile.artifact import Profile, ProfileInfo, routing_fingerprint
from support.mock_engine import DOMAINS, EXPERTS, LAYERS, TOP_K, domain_counts


def domain_profile(domains: Sequence[str] = DOMAINS[:2], **info: Any) -> Profile:
    """A profile with one centroid a domain, in this order, so decode worker i is the one of `domains[i]`."""
    rows = np.array([domain_counts(domain, 1).reshape(-1) for domain in domains], np.float32)
    facts: dict[str, Any] = {
        "model": "mock",
        "layers": LAYERS,
        "experts": EXPERTS,
        "top_k": TOP_K,
        "transformation": "counts",
        "tau": 0.1,
        "rho": None,
        "calibration_requests": 4,
        "seed": 0,
        "created_at": "2026-01-01T00:00:00+00:00",
        "eldr_version": "0",
        **info,
    }
    shape = facts["layers"], facts["experts"], facts["top_k"]
    if shape != (LAYERS, EXPERTS, TOP_K):
        rows = np.ones((len(domains), shape[0] * shape[1]), np.float32)
    return Profile(
        idf=np.ones(shape[:2], np.float32),
        kept_layers=np.arange(shape[0]),
        centroids=rows / np.linalg.norm(rows, axis=1, keepdims=True),
        cluster_sizes=np.ones(len(domains), np.int64),
        info=ProfileInfo(fingerprint=routing_fingerprint(*shape), **facts),
    )
