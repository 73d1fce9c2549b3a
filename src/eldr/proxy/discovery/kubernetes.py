"""The pods that a label selector names: listed, then watched, and listed again when the watch is too old.

Only pods that are Ready and not being deleted are workers. Needs the extra `k8s` (kubernetes_asyncio).
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from eldr.errors import ConfigError
from eldr.proxy.discovery.source import DiscoveryError, Wanted
from eldr.settings_fleet import KubernetesConfig

log = logging.getLogger(__name__)

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
WATCH_S = 300
"""How long the API server may hold one watch; then the next goes on from where it ended."""

ANSWER_S = 30.0
"""How long it may take to list, and to end a watch: an API server that is cut off tells nothing, for ever."""

RELIST_S = 0.5

Pod = dict[str, Any]


class KubernetesSource:
    """Workers of one role by label selector."""

    def __init__(self, role: str, selector: str, config: KubernetesConfig) -> None:
        self.name = f"kubernetes:{role}"
        self._role, self._selector, self._config = role, selector, config
        check_installed()

    async def sets(self) -> AsyncIterator[tuple[Wanted, ...]]:
        """The pods that are Ready, now and whenever that changes. Raises DiscoveryError."""
        from kubernetes_asyncio.client import ApiException

        async with _client(self._config) as client:
            while True:
                try:
                    async for wanted in self._list_and_watch(client):
                        yield wanted
                except ApiException as error:
                    if error.status != 410:
                        raise DiscoveryError(f"Kubernetes answers {error.status} {error.reason}") from None
                    log.info("%s: the watch is too old; listing again", self.name)
                    await asyncio.sleep(RELIST_S)
                except (OSError, aiohttp.ClientError, TimeoutError) as error:
                    reason = str(error) or "it does not answer"
                    raise DiscoveryError(f"Kubernetes cannot be reached: {reason}") from None

    async def _list_and_watch(self, client: Any) -> AsyncIterator[tuple[Wanted, ...]]:
        from kubernetes_asyncio.client import CoreV1Api
        from kubernetes_asyncio.watch import Watch

        api, namespace = CoreV1Api(client), self._config.namespace or own_namespace()
        listed = await api.list_namespaced_pod(
            namespace, label_selector=self._selector, _request_timeout=ANSWER_S
        )
        version: Any = listed.metadata.resource_version
        pods = {pod["metadata"]["name"]: pod for pod in client.sanitize_for_serialization(listed.items)}
        before = self._wanted(pods)
        yield before
        while True:
            async with Watch() as watch:
                async for event in watch.stream(
                    api.list_namespaced_pod,
                    namespace,
                    label_selector=self._selector,
                    resource_version=version,
                    timeout_seconds=WATCH_S,
                    _request_timeout=WATCH_S + ANSWER_S,
                    allow_watch_bookmarks=True,
                ):
                    _note(pods, event["type"], event["raw_object"])
                    if (wanted := self._wanted(pods)) != before:
                        before = wanted
                        yield wanted
                version = watch.resource_version

    def _wanted(self, pods: dict[str, Pod]) -> tuple[Wanted, ...]:
        ready = sorted((name, _host(pod)) for name, pod in pods.items() if is_ready(pod))
        port = self._config.port
        return tuple(Wanted(self._role, f"http://{host}:{port}", name[:64]) for name, host in ready)


def is_ready(pod: Pod) -> bool:
    """Does the pod take traffic: Ready, with an address, and not being deleted?"""
    status = pod.get("status") or {}
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or []}
    leaving = pod["metadata"].get("deletionTimestamp")
    return conditions.get("Ready") == "True" and bool(status.get("podIP")) and not leaving


def own_namespace() -> str:
    """The namespace that the router itself runs in. Raises DiscoveryError outside of a cluster."""
    try:
        return OWN_NAMESPACE.read_text(encoding="utf-8").strip()
    except OSError:
        raise DiscoveryError("not in a cluster; name the namespace in kubernetes.namespace") from None


def check_installed() -> None:
    """Raise ConfigError where the Kubernetes client is missing.

    It takes seconds to import: here, and not later while the event loop has clients.
    """
    try:
        import kubernetes_asyncio
        import kubernetes_asyncio.client
        import kubernetes_asyncio.config
        import kubernetes_asyncio.watch  # noqa: F401
    except ImportError:
        raise ConfigError("Kubernetes discovery needs one more package: pip install '.[k8s]'") from None


@asynccontextmanager
async def _client(config: KubernetesConfig) -> AsyncIterator[Any]:
    """A client of the API server: of the kubeconfig file if one is named, else of the cluster around it."""
    from kubernetes_asyncio import client as kubernetes
    from kubernetes_asyncio import config as typeless

    loading: Any = typeless
    settings = kubernetes.Configuration()
    try:
        if config.kubeconfig is None:
            loading.load_incluster_config(client_configuration=settings)
        else:
            await loading.load_kube_config(
                config.kubeconfig, client_configuration=settings, persist_config=False
            )
    except (loading.ConfigException, OSError) as error:
        raise DiscoveryError(f"no way to the Kubernetes API: {error}; set kubernetes.kubeconfig") from None
    async with kubernetes.ApiClient(settings) as client:
        yield client


def _note(pods: dict[str, Pod], kind: str, pod: Pod) -> None:
    if kind == "BOOKMARK":
        return
    if kind == "DELETED":
        pods.pop(pod["metadata"]["name"], None)
    else:
        pods[pod["metadata"]["name"]] = pod


def _host(pod: Pod) -> str:
    address = str(pod["status"]["podIP"])
    return f"[{address}]" if ":" in address else address
