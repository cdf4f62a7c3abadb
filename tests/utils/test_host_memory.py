from __future__ import annotations

from pathlib import Path

import pytest

from dynedge.utils import host_memory


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("MemTotal:       100 kB\nMemFree:   5 kB\nMemAvailable:    40 kB\n", 0.4),
        ("MemTotal:       100 kB\n", 0.0),
        ("not a table", 0.0),
        (None, 0.0),
    ],
)
def test_the_share_that_is_available(
    text: str | None, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "MEMINFO", tmp_path / "meminfo")
    if text is not None:
        (tmp_path / "meminfo").write_text(text)
    assert host_memory.available_memory() == share
