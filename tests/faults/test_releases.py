"""The newer release of the upgrade's test fits the code as it is: what it replaces is there."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.faults.releases import NEWER_VERSION, make_newer_release

CHECK = """
from actors.shards import membership
from core.settings import Settings
from core.shards.lease_messages import Renewal
from core.workflow.events import NodeChanged
from ledger.code_version import CODE_VERSION
from ledger.features import shards as shard_plan
from ledger.tables.write_function import TEXT
assert Renewal(member="m").newer == ""
assert NodeChanged.__struct_fields__[-1] == "shade"
assert Settings().a_newer_bound == 7
assert "shade = excluded.shade" in TEXT
print(CODE_VERSION)
"""


def test_the_newer_release_can_be_made(tmp_path: Path) -> None:
    folder = make_newer_release(tmp_path / "newer")
    command = [str(folder / ".venv" / "bin" / "python"), "-c", CHECK]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{NEWER_VERSION}\n"), done.stderr
