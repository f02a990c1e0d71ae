"""Every drafter through the conformance suite, as a chain and as a tree."""

from __future__ import annotations

import pytest

from drafters.draft_model import ModelDrafter
from drafters.graft import GraftedDrafter
from drafters.lookup import LookupDrafter
from drafters.registry import DRAFTERS
from spec_planner.engines.table_target import TableTarget
from tests.decoding.toys import logits_of

from .drafter_suite import VOCABULARY, DrafterSuite

MAKERS = {
    "lookup": lambda branches: LookupDrafter(min_ngram=1, branches=branches),
    "draft-model": lambda siblings: ModelDrafter(TableTarget(logits_of(2, 1.0, VOCABULARY), VOCABULARY), siblings),
    "lookup+draft-model": lambda branches: GraftedDrafter(
        MAKERS["lookup"](branches), MAKERS["draft-model"](branches), trees=branches > 1
    ),
}


def test_every_registered_drafter_is_in_the_suite():
    assert set(MAKERS) == {*DRAFTERS, "lookup+draft-model"}


@pytest.mark.parametrize("branches", [1, 3], ids=["chain", "tree"])
@pytest.mark.parametrize("name", MAKERS)
class TestDrafters(DrafterSuite):
    @pytest.fixture
    def make_drafter(self, name, branches):
        return lambda: MAKERS[name](branches)
