"""Pairs are only compared under the same settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.pairs import list_differing_settings, main, quantile_ms
from bench.workflows import Figures


def test_a_setting_with_two_values_is_named_with_both() -> None:
    assert list_differing_settings(
        {"read_rate": 1, "fee_bps": 500}, {"read_rate": 2, "fee_bps": 500}
    ) == ["read_rate: 1 and 2"]


def test_a_setting_that_one_side_does_not_know_is_no_difference() -> None:
    assert not list_differing_settings({"fee_bps": 500}, {"fee_bps": 500, "wait_max": 100})


def test_a_quantile_is_a_measured_latency() -> None:
    figures = Figures(4, 1.0, {}, [30.0, 10.0, 40.0, 20.0])
    assert [quantile_ms(figures, percent) for percent in (1, 50, 51, 99)] == [10, 20, 30, 40]


def test_environments_of_different_builds_of_python_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho '3.11.0 (another build)'\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.argv", ["pairs", str(tmp_path)])
    with pytest.raises(SystemExit, match="expected the same build"):
        main()
