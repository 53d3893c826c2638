"""Planning owners: their epochs, and claims of what a silent one has.

An owner's epoch is the fence between workflow actors: it only grows, and commands that carry an
older one are stale. design.md section 3.
"""

from __future__ import annotations

from core.errors import ErrorCode
from core.records.audit import AuditEventType
from ledger.commands import Outcome, OutcomeStatus
from ledger.owners.owner_commands import ClaimWorkflows, RegisterOwner
from ledger.tables.work_tables import CLAIMS, OWNERS
from ledger.writer.batch import Batch, Refusal, StaleCommand
from ledger.writer.read_set import ReadSet


def add_claim_reads(command: ClaimWorkflows, read_set: ReadSet) -> None:
    """Add what is looked at before an owner's workflows are claimed."""
    read_set.claimed_owners.add(command.from_owner)


def plan_register_owner(command: RegisterOwner, batch: Batch) -> Outcome:
    """Give an owner a new epoch; its result is not stored, because each start is a new one."""
    epoch = batch.cache.owners.get(command.owner, 0) + 1
    batch.cache.owners[command.owner] = epoch
    row = {"name": command.owner, "epoch": epoch, "address": command.address}
    batch.put(OWNERS, command.owner, row)
    batch.record(
        AuditEventType.OWNER_REGISTERED,
        actor_did="",
        target=("owner", command.owner),
        payload={"epoch": epoch, "address": command.address},
    )
    return Outcome(OutcomeStatus.APPLIED, {"epoch": epoch})


def plan_claim(command: ClaimWorkflows, batch: Batch) -> Outcome:
    """Move every unfinished workflow of a silent owner to another and fence the silent one off."""
    owners = batch.cache.owners
    if owners.get(command.to_owner) != command.to_epoch:
        raise StaleCommand
    if owners.get(command.from_owner) != command.from_epoch:
        raise Refusal(
            ErrorCode.CONFLICT,
            f"got epoch {command.from_epoch} of owner {command.from_owner!r},"
            f" it is at {owners.get(command.from_owner)}",
        )
    if command.from_owner == command.to_owner:
        raise Refusal(ErrorCode.CONFLICT, "an owner cannot claim from itself")
    owners[command.from_owner] = command.from_epoch + 1
    for escrow in batch.cache.escrows.values():
        if escrow is not None and escrow.owner == command.from_owner:
            escrow.owner = command.to_owner
    claimed = batch.cache.claimable.get(command.from_owner, 0)
    # The epoch of the silent owner grows; its address is no longer one to be asked.
    row = {"name": command.from_owner, "epoch": command.from_epoch + 1, "address": ""}
    batch.put(OWNERS, command.from_owner, row)
    claim = {"from_owner": command.from_owner, "owner": command.to_owner}
    batch.put(CLAIMS, command.from_owner, claim)
    audit_id = batch.record(
        AuditEventType.WORKFLOWS_CLAIMED,
        actor_did="",
        target=("owner", command.from_owner),
        payload={"toOwner": command.to_owner, "claimed": claimed},
    )
    return batch.decided(command.key, result={"claimed": claimed}, audit_id=audit_id)
