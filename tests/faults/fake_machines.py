"""Ray's provider of fake machines, which offer what ours do when they have joined."""

from __future__ import annotations

from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider

from actors.cluster.scaling.ray_machines import API_RESOURCE


class JoinedMachines(FakeMultiNodeProvider):  # type: ignore[misc]
    """Fake machines that replicas may be on, which Ray's autoscaler does not know of."""

    def _create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> None:
        own = {**resources, API_RESOURCE: 1}
        super()._create_node_with_resources_and_labels(node_config, tags, count, own, labels)
