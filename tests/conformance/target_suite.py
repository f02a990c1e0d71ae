"""What every ``Target`` must do. Subclass, provide the ``target`` fixture, and pytest runs the suite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spec_planner.decoding.contracts import PromptInput, Target
from spec_planner.decoding.draft_tree import DraftTree
from spec_planner.decoding.exact_rules import RULES
from spec_planner.decoding.loop import decode
from spec_planner.decoding.prefix_cache import CHUNK, PrefixCache
from spec_planner.decoding.sampling import NumericError, SamplingParams
from spec_planner.decoding.stopping import Stopping

MATCHING = RULES["drafter-invariant"]
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)


@st.composite
def small_trees(draw) -> DraftTree:
    n = draw(st.integers(1, 8))
    parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, n)]
    return DraftTree(np.array(draw(st.lists(st.integers(0, 40), min_size=n, max_size=n))), np.array(parents))


def in_numpy(values) -> np.ndarray:
    """An array of a tensor on any device and of any type."""
    return values.float().cpu().numpy() if hasattr(values, "cpu") else np.asarray(values)


class TargetSuite:
    """Logits may differ by ``tolerance`` between passes of different width; 0 where the engine promises bits."""

    tolerance = 2e-4

    @pytest.fixture(scope="class")
    def target(self) -> Target:
        raise NotImplementedError("a conformance test class provides its target")

    def reference(self, target: Target, ids) -> np.ndarray:
        """Logits after every one of ``ids``, fed one at a time."""
        target.truncate(0)
        return np.stack([target.extend(PromptInput((token,))).logits_row(0) for token in ids])

    def test_meets_the_protocol(self, target):
        assert isinstance(target, Target)
        assert target.info.vocabulary_size > 40 and target.info.context_length >= 64 and target.info.max_nodes >= 8

    def test_feeding_at_once_equals_one_at_a_time(self, target):
        rows = self.reference(target, PROMPT)
        target.truncate(0)
        output = target.extend(PromptInput(PROMPT))
        assert target.committed_length == len(PROMPT)
        np.testing.assert_allclose(output.logits_row(0), rows[-1], atol=self.tolerance)

    @settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(shared=st.integers(0, 110), seed=st.integers(0, 9), said=st.integers(1, 12))
    @example(shared=63, seed=5, said=1)
    def test_a_warm_start_equals_a_cold_one_to_the_bit(self, target, shared, seed, said):
        """The next prompt shares its beginning with the last one, after which something was decoded."""
        random = np.random.default_rng(seed)
        first, second = (random.integers(0, 41, count).tolist() for count in (114, 115))
        second[:shared] = first[:shared]
        second[shared] = (first[shared] + 1) % 41  # where they part, they do

        def rows(prompt, prefix_cache):
            asked = target, None, PromptInput(tuple(prompt)), SamplingParams(), Stopping(said), MATCHING
            list(decode(*asked, prefix_cache=prefix_cache))
            target.truncate(len(prompt))
            return target.verify(DraftTree.root(5)).logits_row(0).copy()

        cold = rows(second, PrefixCache())
        prefix_cache = PrefixCache()
        rows(first, prefix_cache)
        warm = rows(second, prefix_cache)
        assert prefix_cache.reused == min(shared, 114) // CHUNK * CHUNK
        np.testing.assert_array_equal(warm, cold)

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(tree=small_trees(), data=st.data())
    def test_verify_scores_every_branch_and_commit_keeps_one(self, target, tree, data):
        path = [0]
        while tree.children[path[-1]] and data.draw(st.booleans()):
            path.append(data.draw(st.sampled_from(tree.children[path[-1]])))
        target.truncate(0)
        target.extend(PromptInput(PROMPT))
        if data.draw(st.booleans()):
            target.verify(DraftTree.chain((7, 7, 7)))  # abandoned: must leave no trace
        output = target.verify(tree)
        scores, best = [output.logits_row(node) for node in range(tree.num_nodes)], output.argmax()
        assert target.committed_length == len(PROMPT)
        target.commit(path)
        assert target.committed_length == len(PROMPT) + len(path)
        after = target.verify(DraftTree.root(11)).logits_row(0)
        for node in range(tree.num_nodes):
            branch = [int(token) for token in tree.tokens[tree.ancestor_mask[node]]]
            np.testing.assert_allclose(
                scores[node], self.reference(target, (*PROMPT, *branch))[-1], atol=self.tolerance
            )
            assert best[node] == scores[node].argmax()
        committed = [int(tree.tokens[node]) for node in path]
        np.testing.assert_allclose(after, self.reference(target, (*PROMPT, *committed, 11))[-1], atol=self.tolerance)

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_any_history_equals_feeding_what_was_committed(self, target, data):
        """Verify, abandon, commit and truncate in any order: only the committed tokens count."""
        target.truncate(0)
        target.extend(PromptInput(PROMPT))
        context = list(PROMPT)
        for _ in range(data.draw(st.integers(1, 5))):
            tree = data.draw(small_trees())
            target.verify(tree)
            action = data.draw(st.sampled_from(["abandon", "commit", "commit", "truncate"]))
            if action == "commit":
                path = [0]
                while tree.children[path[-1]] and data.draw(st.booleans()):
                    path.append(data.draw(st.sampled_from(tree.children[path[-1]])))
                target.commit(path)
                context += [int(tree.tokens[node]) for node in path]
            elif action == "truncate":
                length = data.draw(st.integers(1, len(context)))
                target.truncate(length)
                del context[length:]
            assert target.committed_length == len(context)
        got = target.verify(DraftTree.root(13)).logits_row(0)
        np.testing.assert_allclose(got, self.reference(target, (*context, 13))[-1], atol=self.tolerance)

    def test_truncate_forgets(self, target):
        rows = self.reference(target, (*PROMPT[:4], 8))
        target.truncate(4)
        np.testing.assert_allclose(target.verify(DraftTree.root(8)).logits_row(0), rows[-1], atol=self.tolerance)
        with pytest.raises(ValueError, match="cannot truncate"):
            target.truncate(5)

    def test_commit_is_due_once_and_follows_the_tree(self, target):
        target.truncate(0)
        target.extend(PromptInput(PROMPT))
        target.verify(DraftTree.chain((1, 2)))
        with pytest.raises(ValueError, match="does not follow the tree"):
            target.commit((0, 2))
        target.verify(DraftTree.chain((1, 2)))
        target.commit((0, 1))
        with pytest.raises(RuntimeError, match="commit needs a verified tree"):
            target.commit((0,))

    def test_ties_go_to_the_lowest_id(self, target):
        target.truncate(0)
        target.extend(PromptInput(PROMPT))
        output = target.verify(DraftTree.chain((1, 2, 3)))
        for node, best in enumerate(output.argmax()):
            row = output.logits_row(node)
            assert row.dtype == np.float32 and row.shape == (target.info.vocabulary_size,)
            assert best == np.flatnonzero(row == row.max())[0]


class ModelTargetSuite(TargetSuite):
    """What a target over one of ``make_tiny_model``'s checkpoints must do besides."""

    feature_tolerance = 1e-7  # of a tapped embedding, relative

    def test_numbers_that_overflowed_do_not_reach_the_next_run(self, target):
        def row():
            target.truncate(0)
            target.extend(PromptInput(PROMPT))
            return target.verify(DraftTree.chain((7, 7))).logits_row(1)

        before, session = row(), target._session
        cache = getattr(session, "cache", None) or session._cache
        parts = [cache.view()] if hasattr(cache, "view") else [vars(cache).get(n) for n in ("keys", "values", "rows")]
        for part in filter(lambda part: part is not None, parts):
            part[:, :, :64] = float("nan")
        with pytest.raises(NumericError):
            target.verify(DraftTree.chain((7, 7))).argmax()
        np.testing.assert_array_equal(row(), before)

    def test_what_is_tapped_changes_nothing_else_and_comes_in_the_order_asked(self, target):
        """Two drafters in turn on one target, each with layers of its own, and none: the words stay the same."""

        def pass_with(layers):
            target.tap(layers)
            try:
                target.truncate(0)
                target.extend(PromptInput(PROMPT))
                output = target.verify(DraftTree.chain((3, 5)))
                features = output.features((0, 1))
                return output.logits_row(1).copy(), None if features is None else in_numpy(features)
            finally:
                target.tap(())

        plain, none = pass_with(())
        assert none is None
        seen = {}
        for layers in ((2,), (1,), (), (2, 0), (0, 1, 2), (1, 1), (2,), ()):
            logits, features = pass_with(layers)
            np.testing.assert_array_equal(logits, plain)
            for index, layer in enumerate(layers):
                np.testing.assert_array_equal(features[:, index], seen.setdefault(layer, features[:, index].copy()))

    def test_tapped_features_are_the_hidden_states(self, target):
        target.tap((0, 2))
        try:
            target.truncate(0)
            features = in_numpy(target.extend(PromptInput(PROMPT)).features(range(len(PROMPT))))
            assert features.shape == (len(PROMPT), 2, 64)
            embedding = in_numpy(target.lend("embedding"))[list(PROMPT)]
            np.testing.assert_allclose(features[:, 0], embedding, rtol=self.feature_tolerance)
            last = features[-1, 1] @ in_numpy(target.lend("head")).T
            target.truncate(len(PROMPT) - 1)
            again = target.extend(PromptInput(PROMPT[-1:])).logits_row(0)
            np.testing.assert_allclose(again, last, atol=max(self.tolerance, 1e-4))
        finally:
            target.tap(())

    def test_an_output_outlives_the_next_pass(self, target):
        target.truncate(0)
        output = target.extend(PromptInput(PROMPT))
        before = output.logits_row(0).copy()
        target.verify(DraftTree.chain((1, 2, 3)))
        np.testing.assert_array_equal(output.logits_row(0), before)


class BitwiseSuite:
    """Where bits are promised: a target with one pass width, and chains. Its context holds at least 600 tokens."""

    @pytest.fixture(scope="class")
    def target(self) -> Target:
        raise NotImplementedError("a conformance test class provides its target")

    @pytest.mark.parametrize("start", [8, 150, 240, 480])  # the passes then cross KV extents of 64 … 512 slots
    def test_logits_are_equal_in_bits_whichever_pass_computed_them(self, target, start):
        """Drafts of any length, partly wrong, some abandoned, against one token a pass."""
        random = np.random.default_rng(start)
        prompt, tokens = tuple(random.integers(0, 41, start).tolist()), random.integers(0, 41, 60).tolist()
        target.truncate(0)
        target.extend(PromptInput(prompt))
        plain = []
        for token in tokens:
            plain.append(target.verify(DraftTree.root(token)).logits_row(0).copy())
            target.commit((0,))
        target.truncate(0)
        target.extend(PromptInput(prompt))
        done = 0
        while done < len(tokens):
            right = tokens[done : done + int(random.integers(1, target.info.max_nodes + 1))]
            wrong = random.integers(0, 41, int(random.integers(0, target.info.max_nodes + 1 - len(right)))).tolist()
            output = target.verify(DraftTree.chain(right + wrong))
            for node in range(len(right)):
                np.testing.assert_array_equal(output.logits_row(node), plain[done + node])
            if random.random() < 0.8:  # else abandoned, and drafted anew
                target.commit(tuple(range(len(right))))
                done += len(right)
