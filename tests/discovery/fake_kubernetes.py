"""An API server that speaks list and watch for pods, and as little else as it can."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from support.stack import aiohttp_served

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""


def pod(
    name: str, address: str | None, ready: bool = True, role: str = "decode", **metadata: Any
) -> dict[str, Any]:
    """A pod as the API server tells it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ai", "labels": {"role": role}, **metadata},
        "spec": {"containers": [{"name": "engine", "image": "vllm"}]},
        "status": {
            "podIP": address,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


class FakeKubernetes:
    """Pods, and what has happened to them; a watch from before `oldest` is too old (410)."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.version, self.oldest, self.lists, self.watches = 1, 0, 0, 0
        self.broken = self.silent = False
        self.events_a_watch = 1_000_000
        self.changed = asyncio.Condition()

    async def put(self, changed: dict[str, Any]) -> None:
        kind = "MODIFIED" if changed["metadata"]["name"] in self.pods else "ADDED"
        self.pods[changed["metadata"]["name"]] = changed
        await self._happened(kind, changed)

    async def delete(self, name: str) -> None:
        await self._happened("DELETED", self.pods.pop(name))

    async def forget_history(self) -> None:
        """End all watches with 410: what they ask for is gone."""
        self.oldest = self.version = self.version + 1
        async with self.changed:
            self.changed.notify_all()

    async def _happened(self, kind: str, changed: dict[str, Any]) -> None:
        self.version += 1
        changed["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, kind, changed))
        async with self.changed:
            self.changed.notify_all()

    async def list_or_watch(self, request: web.Request) -> web.StreamResponse:
        assert request.match_info["namespace"] == "ai"
        if self.broken:
            return web.json_response({"kind": "Status", "code": 500}, status=500)
        if self.silent:
            await asyncio.sleep(60)
        role = request.query["labelSelector"].removeprefix("role=")
        if request.query.get("watch") not in ("true", "True", "1"):
            self.lists += 1
            items = [one for one in self.pods.values() if one["metadata"]["labels"]["role"] == role]
            metadata = {"resourceVersion": str(self.version)}
            return web.json_response(
                {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}
            )
        self.watches += 1
        return await self._watch(request, role, int(request.query["resourceVersion"]))

    async def _watch(self, request: web.Request, role: str, version: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        sent = 0
        while True:
            if version < self.oldest:
                gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
                return response
            for number, kind, changed in self.history:
                if number > version and changed["metadata"]["labels"]["role"] == role:
                    await response.write(json.dumps({"type": kind, "object": changed}).encode() + b"\n")
                    sent += 1
            if sent >= self.events_a_watch:
                return response
            version = self.version
            async with self.changed:
                await self.changed.wait()


@asynccontextmanager
async def fake_kubernetes(folder: Path) -> AsyncIterator[tuple[FakeKubernetes, str]]:
    """A running API server and the path of a kubeconfig that leads to it."""
    cluster = FakeKubernetes()
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/{namespace}/pods", cluster.list_or_watch)
    async with aiohttp_served(app) as url:
        path = folder / "kubeconfig"
        path.write_text(KUBECONFIG.format(url=url))
        yield cluster, str(path)
