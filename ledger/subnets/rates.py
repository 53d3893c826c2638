"""Nodes that a payer has published in a minute, counted by the rate policies that bind it.

The single ledger writer counts, so the limit is exact over all replicas and owners. A new writer
starts with empty counts, so a member can publish up to twice the limit in that minute. Reference:
features.md (Subnets and policies).
"""

from __future__ import annotations

from typing import Final

from core.errors import ErrorCode
from ledger.workflows.workflow_commands import PublishWorkflow
from ledger.writer.batch import Batch, Refusal

MINUTE_MS: Final = 60_000
# By payer and policy: a minute, and how many nodes were published in it.
RateCounts = dict[tuple[str, str], tuple[int, int]]


def count_nodes(command: PublishWorkflow, batch: Batch) -> RateCounts:
    """Return the counts of the payer's rate policies with the nodes of a publish.

    The caller stores them in `batch.cache.rates` once the publish is accepted.

    Raises: Refusal(RATE_LIMITED).
    """
    minute, counts = batch.now_ms // MINUTE_MS, RateCounts()
    for rate in command.rates:
        key, most = (command.payer_did, rate.policy_id), rate.limit_per_minute
        known_minute, known = batch.cache.rates.get(key, (minute, 0))
        nodes = rate.nodes + (known if known_minute == minute else 0)
        if nodes > most:
            raise Refusal(
                ErrorCode.RATE_LIMITED,
                f"the policy {rate.policy_id} (rate_limit) allows {most} nodes a minute; with this"
                f" workflow there would be {nodes}: publish it in the next minute, or with fewer"
                " nodes",
                retry_after_s=(MINUTE_MS - batch.now_ms % MINUTE_MS) // 1_000 + 1,
            )
        counts[key] = (minute, nodes)
    return counts
