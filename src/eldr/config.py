"""Settings of the router: frozen, and the same from flags and from a YAML file.

An unknown key or a value of the wrong kind raises ConfigError naming both. Flags win over the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import yaml
from msgspec import Meta, Struct

from eldr.errors import ConfigError
from eldr.settings_adapt import AdaptConfig
from eldr.settings_errors import explain
from eldr.settings_fleet import AdminConfig, BreakerConfig, DnsConfig, KubernetesConfig, RetryConfig
from eldr.settings_front import LimitConfig, SecurityConfig
from eldr.settings_observe import ObserveConfig
from eldr.settings_units import HEADER, NAME, Port, Seconds, SecondsOrNone

ROLES = {"prefill": "p", "decode": "d"}
"""Roles of workers, with the letter that begins their default names (p0, d0, d1, ...)."""


class WorkerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """One engine: its name in logs, metrics and answers, and the root of its URL (no path)."""

    name: Annotated[str, NAME]
    url: str


class PolicyConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A policy of eldr.policy by name, and the options that its constructor takes."""

    name: str = "soft_locality"
    options: dict[str, Any] = {}


class Config(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that `eldr serve` can be told. Times in seconds.

    prefill, decode: the workers, in the order in which policies and profiles count them.
    profile: file made by `eldr fit`; None routes by load until one was learned (eldr.adapt).
    label_header: request header whose value is the request's label, for routing by static labels.
    wait_s: how long to wait at start for a worker of each role.
    drain_notice_s: how long after SIGTERM requests are still taken, while /ready already says 503.
    drain_s: how long running requests may take to finish after that.
    connect_timeout_s: for one connection to a worker.
    idle_timeout_s: longest silence of a worker, during a prefill or between two chunks of an answer.
    health_interval_s, health_timeout_s: of the active check (GET /health) of each worker.
    body_limit_bytes: largest request body; larger ones get 413.
    records: file to which one JSON line a request is appended, or None.
    seed: of the random numbers of policies that need them.
    processes: router processes that share the port and the load's ledger.
    """

    prefill: tuple[WorkerConfig, ...]
    decode: tuple[WorkerConfig, ...]
    policy: PolicyConfig = PolicyConfig()
    profile: str | None = None
    host: str = "127.0.0.1"
    port: Port = 8000
    label_header: Annotated[str, HEADER] = "x-eldr-label"
    wait_s: SecondsOrNone = 10.0
    drain_notice_s: SecondsOrNone = 0.0
    drain_s: SecondsOrNone = 30.0
    connect_timeout_s: Seconds = 5.0
    idle_timeout_s: Seconds = 300.0
    health_interval_s: Seconds = 2.0
    health_timeout_s: Seconds = 5.0
    body_limit_bytes: Annotated[int, Meta(gt=0)] = 64 * 1024 * 1024
    records: str | None = None
    seed: Annotated[int, Meta(ge=0)] = 0
    processes: Annotated[int, Meta(ge=1, le=64)] = 1
    breaker: BreakerConfig = BreakerConfig()
    retry: RetryConfig = RetryConfig()
    admin: AdminConfig = AdminConfig()
    dns: DnsConfig = DnsConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    observe: ObserveConfig = ObserveConfig()
    limits: LimitConfig = LimitConfig()
    security: SecurityConfig = SecurityConfig()
    adapt: AdaptConfig = AdaptConfig()


def load_config(path: str | None, overrides: Mapping[str, Any]) -> Config:
    """Settings from a YAML file (None for no file) with `overrides` (the flags that were given) over them.

    Raises ConfigError for an unreadable file, an unknown key, a bad value, no workers, or two of one name.
    """
    raw = _merged(_read_yaml(path) if path else {}, overrides)
    for role, letter in ROLES.items():
        raw[role] = _workers(role, letter, raw.get(role) or [])
    config = _convert(raw)
    for role in ROLES:
        if not raw[role] and not _discovers(raw, role):
            raise ConfigError(f"no {role} worker given; use --{role} URL or `{role}: [URL]` in the file")
    _check_workers(config)
    if (together := config.limits.bodies_bytes) < config.body_limit_bytes:
        raise ConfigError(
            f"limits.bodies_bytes: {together} is below body_limit_bytes, {config.body_limit_bytes}"
        )
    if (first_s := config.breaker.open_s) > (longest_s := config.breaker.longest_open_s):
        raise ConfigError(f"breaker.open_s: {first_s:g} is above breaker.longest_open_s, {longest_s:g}")
    return config


def parse_option(text: str) -> tuple[str, Any]:
    """`tau=0.1` -> ("tau", 0.1); values are read as YAML, so lists and mappings work too."""
    key, equals, value = text.partition("=")
    if not key or not equals or not value.strip():
        raise ConfigError(f"policy option {text!r} is not of the form KEY=VALUE")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"policy option {key}: {value!r} is not a YAML value") from None


def _merged(file: dict[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags over the file; options given without a policy's name are for the file's policy."""
    merged = {**file, **flags}
    for group in ("observe", "admin", "adapt"):
        if isinstance(file.get(group), dict) and group in flags:
            merged[group] = {**file[group], **flags[group]}
    policies = file.get("policy"), flags.get("policy")
    if all(isinstance(policy, dict) for policy in policies) and "name" not in policies[1]:  # type: ignore[operator]
        merged["policy"] = {**policies[0], **policies[1]}  # type: ignore[dict-item]
    return merged


def _discovers(raw: dict[str, Any], role: str) -> bool:
    """Does DNS or Kubernetes tell the workers of a role?"""
    groups = (raw.get("dns"), raw.get("kubernetes"))
    return any(isinstance(group, dict) and group.get(role) for group in groups)


def _read_yaml(path: str) -> dict[str, Any]:
    try:
        raw = yaml.load(Path(path).read_text(encoding="utf-8"), _OnceEach)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise ConfigError(f"{path}: line {line} is not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must hold a mapping of settings, not {type(raw).__name__}")
    return {str(key): value for key, value in raw.items()}


MERGE = "tag:yaml.org,2002:merge"
"""Of the key `<<`, which may stand several times."""


class _OnceEach(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping: YAML would drop the first one's value in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                continue  # a mapping or a list, which is no key of a setting
            if key.value in seen and key.tag != MERGE:
                raise yaml.constructor.ConstructorError(
                    problem=f"{key.value!r} is given twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _workers(role: str, letter: str, entries: object) -> list[dict[str, str]]:
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, str) for entry in entries):
        raise ConfigError(f"{role}: {entries!r} is not a list of URLs (or of NAME=URL)")
    return [_worker(f"{letter}{index}", entry) for index, entry in enumerate(entries)]


def _worker(default_name: str, text: str) -> dict[str, str]:
    """`http://host:8100` or `name=http://host:8100`; the equals sign must come before the URL's scheme."""
    head, equals, tail = text.partition("=")
    name, url = (head, tail) if equals and "://" not in head else (default_name, text)
    return {"name": name, "url": url.rstrip("/")}


def _check_workers(config: Config) -> None:
    names = [worker.name for worker in (*config.prefill, *config.decode)]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two workers are named {name!r}; give each its own name (NAME=URL)")
    for worker in (*config.prefill, *config.decode):
        check_url(worker)
    for role in (config.prefill, config.decode):
        urls = [worker.url for worker in role]
        for worker in role:
            if urls.count(worker.url) > 1:
                raise ConfigError(f"worker {worker.name!r}: {worker.url!r} is given twice")


def check_url(worker: WorkerConfig) -> None:
    """Raise ConfigError for a URL that is not the root of an HTTP server."""
    try:
        parts = urlsplit(worker.url)
        only_root = f"{parts.scheme}://{parts.netloc}" == worker.url and " " not in worker.url
        right = only_root and parts.scheme in ("http", "https") and parts.hostname and not parts.username
        _ = parts.port  # raises for a port that is not a number below 65536
        (parts.hostname or "").encode("idna")  # raises for a name that no resolver takes
    except ValueError:
        right = False
    if not right:
        raise ConfigError(f"worker {worker.name!r}: {worker.url!r} is not of the form http://HOST:PORT")


def _convert(raw: dict[str, Any]) -> Config:
    try:
        return msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(explain(str(error), raw, Config)) from None
