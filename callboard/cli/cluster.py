"""`cluster`, `drain` and `rotate-signing-key`: members, a machine that gives its work away, and the
key with which the deployment signs.

Decision cluster-and-releases.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from callboard.cli.session import EXIT_UNSUCCESSFUL, EXIT_USAGE, Session, stop, table, verb

if TYPE_CHECKING:
    from callboard.replies import ClusterMember

# Members tell the ledger twice a second what they have.
_LOOK_S: Final = 0.5
_COLUMNS: Final = (
    "machine", "id", "version", "state", "isLive", "shards", "load", "openCalls", "isDrained",
)  # fmt: skip


def show_cluster(session: Session) -> None:
    """Show the members of the cluster and their shards."""
    reply = session.client.cluster()

    def text() -> None:
        _print_members(reply.members)
        if reply.unheld_shards:
            print(f"{reply.unheld_shards} shards have no live member")

    session.show(reply, text)


def drain(
    session: Session,
    machine: Annotated[
        str,
        typer.Argument(help="The machine's ID, or a unique prefix of it.", metavar="MACHINE"),
    ],
    wait: Annotated[
        float | None,
        typer.Option(
            help="Longest wait in seconds; default: the service's drain_ms.",
            show_default=False,
            min=0,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="End the drain; the machine takes work again.")
    ] = False,
) -> None:
    """Drain a machine: move its work to others; returns when it can be switched off."""
    if resume:
        if wait is not None:
            stop(EXIT_USAGE, "--wait is for draining, not for --resume")
        resumed = session.client.resume_machine(machine)
        session.show(resumed, lambda: _print_members(resumed.members))
        return
    asked = session.client.drain_machine(machine)
    wait_s = asked.drain_ms / 1_000 if wait is None else wait
    members, deadline, shown = asked.members, time.monotonic() + wait_s, ""
    while not all(map(_has_ended, members)):
        if not session.is_json and (left := _left(members)) != shown:
            print(left, flush=True)
            shown = left
        if time.monotonic() + _LOOK_S > deadline:
            _stop_undrained(session, asked.machine, members, wait_s)
        time.sleep(_LOOK_S)
        members = [one for one in session.client.cluster().members if one.machine == asked.machine]
    session.show(
        {"machine": asked.machine, "isDrained": True, "members": members},
        lambda: print(f"drained: {asked.machine} holds nothing and has no open call"),
    )


def rotate_signing_key(session: Session) -> None:
    """Sign receipts and checkpoints with a new key; the audit chain records the change."""
    session.show_record(session.client.rotate_signing_key())


def _has_ended(member: ClusterMember) -> bool:
    """Say whether nothing would be lost with a member's process.

    What does not live and holds nothing is over: its calls were lost with its lease.
    """
    return member.is_drained if member.is_live else not member.shards


def _left(members: Sequence[ClusterMember]) -> str:
    shards = sum(one.shards for one in members)
    return f"{shards} shards and {sum(one.open_calls for one in members)} open calls are left"


def _stop_undrained(
    session: Session, machine: str, members: Sequence[ClusterMember], wait_s: float
) -> NoReturn:
    """End the process: say what is left on a machine that has not drained in time."""
    session.show(
        {"machine": machine, "isDrained": False, "members": members},
        lambda: _print_members(members),
    )
    stop(
        EXIT_UNSUCCESSFUL,
        f"not drained after {wait_s:g} s: {_left(members)} on {machine}, and the drain goes on",
    )


def _print_members(members: Sequence[ClusterMember]) -> None:
    table(_COLUMNS, ([one[column] for column in _COLUMNS] for one in members))


def add_to(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    verb(app, "cluster", "Operate")(show_cluster)
    verb(app, "drain", "Operate")(drain)
    verb(app, "rotate-signing-key", "Operate")(rotate_signing_key)
