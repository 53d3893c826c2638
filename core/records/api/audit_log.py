"""Proofs of the audit log: its tree, its checkpoints, and what the service finds when it checks.

Reference: money.md (Checkpoints).
"""

from __future__ import annotations

from typing import Annotated

from core.records.api.kinds import Count, EntryId, Hash, Limit
from core.records.api.record import Record
from core.records.api.shape import Body, Maybe, Named


class CheckpointQuery(Body):
    """Which checkpoint to read."""

    size: Annotated[
        Maybe[EntryId],
        "The first checkpoint that covers this entry. Default: the newest checkpoint.",
    ] = None


class ProofQuery(Body):
    """The entry to prove, and the tree that holds it."""

    id: Annotated[EntryId, "Id of the audit entry."]
    size: Annotated[
        Maybe[EntryId], "Size of the tree, at most that of the newest checkpoint, the default."
    ] = None


class ConsistencyQuery(Body):
    """The two trees to compare."""

    from_size: Annotated[EntryId, Named("from"), "Size of the older tree."]
    to_size: Annotated[
        Maybe[EntryId],
        Named("to"),
        "Size of the newer tree, at most that of the newest checkpoint, the default.",
    ] = None


class ExportQuery(Body):
    """Where an export begins."""

    from_id: Annotated[Maybe[EntryId], Named("from"), "Id of the first entry. Default 1."] = None


class VerifyQuery(ExportQuery):
    """The entries to check."""

    limit: Annotated[
        Maybe[Limit],
        "Maximum number of entries to check, 1 to 10,000 and about 1 MiB. Default 1,000.",
    ] = None


class SignedCheckpoint(Record):
    """A signed checkpoint of the audit log, which the service sends as text."""

    note: Annotated[str, "The signed note."]


class InclusionProof(Record):
    """A proof that the tree of the audit log holds an entry (RFC 6962)."""

    id: Annotated[int, "Id of the audit entry, which is leaf `id` - 1."]
    size: Annotated[Count, "Number of entries in the tree."]
    leaf_hash: Annotated[Hash, "Leaf hash: SHA-256 of 0x00 and the body of the entry."]
    hashes: Annotated[list[Hash], "Hashes of the neighbours, from the leaf to the root."]
    root: Annotated[Hash, "Root of the tree."]


class ConsistencyProof(Record):
    """A proof that a tree continues an older one (RFC 6962)."""

    from_size: Annotated[Count, Named("from"), "Number of entries in the older tree."]
    to_size: Annotated[Count, Named("to"), "Number of entries in the newer tree."]
    hashes: Annotated[list[Hash], "Hashes of the proof."]
    from_root: Annotated[Hash, "Root of the older tree."]
    to_root: Annotated[Hash, "Root of the newer tree."]


class AuditVerification(Record):
    """What the service found when it read stored entries again."""

    valid: Annotated[bool, "Whether no defect was found."]
    from_id: Annotated[int, Named("from"), "First entry that was checked."]
    to_id: Annotated[int | None, Named("to"), "Last entry that was checked; null: there is none."]
    entries: Annotated[Count, "Number of entries that were checked."]
    next_from: Annotated[int | None, "Where the next check begins; null: all are checked."]
    first_bad: Annotated[int | None, "First defective entry; null: none."]
    checkpoint: Annotated[str | None, "Newest checkpoint, a signed note; null: there is none yet."]
