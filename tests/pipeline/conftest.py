"""The tiny model's tokenizer, and runs with and without a drafter."""

from __future__ import annotations

import pytest

from drafters.lookup import LookupDrafter
from spec_planner.language.tokenizer import Tokenizer
from tests.models import make_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(make_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(params=["none", "lookup"])
def drafter(request: pytest.FixtureRequest) -> LookupDrafter | None:
    return LookupDrafter() if request.param == "lookup" else None
