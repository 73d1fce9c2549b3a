"""The mix of domains of a synthetic workload."""

from eldr.traces.presets import preset


def mix(model: str, workload: str) -> dict[str, float]:
    """Percent of the requests that each domain has."""
    domains = preset(model, workload).domains
    shares = {name: 100 * share / sum(domains.values()) for name, share in domains.items() if share}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
