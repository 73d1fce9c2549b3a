"""The sources that a configuration names."""

from eldr.config import ROLES, Config
from eldr.proxy.discovery.dns import DnsSource
from eldr.proxy.discovery.kubernetes import KubernetesSource
from eldr.proxy.discovery.source import Source


def discovered_roles(config: Config) -> set[str]:
    """The roles whose workers DNS or Kubernetes tells."""
    return {role for role in ROLES if getattr(config.dns, role) or getattr(config.kubernetes, role)}


def sources(config: Config) -> list[Source]:
    """DNS names and label selectors. Raises ConfigError where a package for them is missing."""
    dns = [DnsSource(role, url, config.dns.interval_s) for role in ROLES for url in getattr(config.dns, role)]
    kubernetes = [
        KubernetesSource(role, selector, config.kubernetes)
        for role in ROLES
        if (selector := getattr(config.kubernetes, role))
    ]
    return [*dns, *kubernetes]
