"""The first key survives a crash while it is made."""

from __future__ import annotations

from pathlib import Path

from serve_app.callers.auth import key_hash
from serve_app.supervisor.admin_key import FILE, admin_key_command, prepared_key


def test_a_crash_after_the_key_is_written_repeats_the_same_command(tmp_path: Path) -> None:
    command = admin_key_command(prepared_key(tmp_path))
    assert admin_key_command(prepared_key(tmp_path)) == command
    assert command.key_hash == key_hash((tmp_path / FILE).read_text())


def test_a_half_written_file_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "admin.key.new").write_text("cb_sho")
    assert len(prepared_key(tmp_path)) > 40


def test_the_key_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    prepared_key(tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_the_key_itself_is_not_in_the_command(tmp_path: Path) -> None:
    api_key = prepared_key(tmp_path)
    assert api_key not in repr(admin_key_command(api_key))
