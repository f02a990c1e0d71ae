"""Files that come with the package are found in a checkout and in an installed share directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_planner import resources
from spec_planner.language.skills import DEFAULT_SKILLS, load_skills


def test_a_checkout_has_its_own() -> None:
    assert resources.shared_file(DEFAULT_SKILLS) == Path(__file__).resolve().parents[1] / DEFAULT_SKILLS
    assert len(load_skills()) >= 8


def test_an_installed_package_looks_in_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An installed package has no config/ beside it.
    monkeypatch.setattr(resources, "__file__", str(tmp_path / "lib" / "spec_planner" / "resources.py"))
    monkeypatch.setattr(resources.sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setenv("AMENT_PREFIX_PATH", f"{tmp_path / 'other'}:{tmp_path / 'ws'}")
    with pytest.raises(FileNotFoundError, match="household.yaml was not found below"):
        resources.shared_file(DEFAULT_SKILLS)
    for prefix in ("ws", "venv"):  # the environment's own prefix comes first
        target = tmp_path / prefix / "share" / "spec_planner" / DEFAULT_SKILLS
        target.parent.mkdir(parents=True)
        target.write_text("- {name: wave}")
        assert resources.shared_file(DEFAULT_SKILLS) == target
