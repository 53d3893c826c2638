"""Makes two releases of the code: one as it is, and a newer one, each with an environment.

The newer one has what the next release of the service may bring: a version of its code, a setting,
a column with its migration, a field of a message that it writes
only when all of the cluster understands it, and an event type, which its ledger records when a
member joins.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from ledger.code_version import CODE_VERSION
from ledger.migrate import MIGRATIONS
from tests.platform.deployments import copy_code

NEWER_VERSION = CODE_VERSION + 1
NEWER_EVENT = "member.greeted"
NEWER_VALUE = "newer"
_MIGRATION = '''"""The column of a newer release."""

from alembic import op

from ledger.migrations.steps import refuse_downgrade

revision = "{revision}"
down_revision = "{before}"
phase = "pre"
downgrade = refuse_downgrade


def upgrade() -> None:
    op.execute("ALTER TABLE callboard.node ADD COLUMN IF NOT EXISTS shade text")
'''


def make_release(folder: Path) -> Path:
    """Make a folder with the code as it is and an environment of its own, and return it."""
    folder.mkdir()
    copy_code(folder)
    environment = folder / ".venv"
    library = sysconfig.get_path("purelib")
    packages = environment / Path(library).relative_to(sys.prefix)
    packages.mkdir(parents=True)
    # The same Ray and the same other packages, as two releases have them.
    (packages / "same.pth").write_text(f"{library}\n", encoding="utf-8")
    programs = environment / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(os.path.realpath(sys.executable))
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), environment)
    shutil.copy(Path(sys.executable).parent / "ray", programs)
    return folder


def make_newer_release(folder: Path) -> Path:
    """Make a folder with a newer release of the code, and return it."""
    make_release(folder)
    _replace(
        folder / "ledger/code_version.py",
        f"CODE_VERSION: Final = {CODE_VERSION}",
        f"CODE_VERSION: Final = {NEWER_VERSION}",
    )
    _replace(
        folder / "core/settings.py",
        "    host: str = _setting(",
        '    a_newer_bound: int = _setting(7, "a bound of the newer release", low=1)\n'
        "    host: str = _setting(",
    )
    _replace(
        folder / "core/records/audit.py",
        '    SHARDS_TAKEN = "shards.taken"\n',
        f'    SHARDS_TAKEN = "shards.taken"\n    MEMBER_GREETED = "{NEWER_EVENT}"\n',
    )
    _replace(
        folder / "ledger/features/shards.py",
        "    _end_members(ended, batch)\n",
        '    batch.record(AuditEventType.MEMBER_GREETED, ("member", command.member))\n'
        "    _end_members(ended, batch)\n",
    )
    _replace(
        folder / "core/shards/lease_messages.py",
        "\n\n\nclass MemberView",
        '\n    newer: str = ""\n\n\nclass MemberView',
    )
    _replace(
        folder / "actors/shards/membership.py",
        "            open_calls=open_calls,\n",
        "            open_calls=open_calls,\n"
        f'            newer="{NEWER_VALUE}" if self.cluster_version >= {NEWER_VERSION} else "",\n',
    )
    _add_column(folder)
    return folder


def _add_column(folder: Path) -> None:
    _replace(
        folder / "ledger/tables/work_tables.py",
        '    "counts_as text CHECK',
        '    "shade text",\n    "counts_as text CHECK',
    )
    _replace(
        folder / "core/workflow/events.py",
        "    auction_closes_ms: int | None = None\n    key_version: int = 0\n",
        "    auction_closes_ms: int | None = None\n    key_version: int = 0\n"
        "    shade: str | None = None\n",
    )
    state = folder / "core/workflow/workflow_state.py"
    _replace(
        state,
        "        self.key_version = key_version\n",
        f'        self.key_version = key_version\n        self.shade = "{NEWER_VALUE}"\n',
    )
    before = max(file.name[:4] for file in (MIGRATIONS / "versions").glob("*.py"))
    revision = f"{int(before) + 1:04}"
    (folder / f"ledger/migrations/versions/{revision}_shade.py").write_text(
        _MIGRATION.format(revision=revision, before=before), encoding="utf-8"
    )


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{file}: {text.count(old)} of {old!r}"
    file.write_text(text.replace(old, new), encoding="utf-8")
