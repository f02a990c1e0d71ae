"""Valid by construction: whatever is drawn under the mask is a plan, and every plan can be drawn."""

from __future__ import annotations

import gc
import json
import random
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spec_planner.language import plan_constraint
from spec_planner.language.grammar import GrammarError, NumberRange, values_of
from spec_planner.language.plan import ENUM, NUMBER, TEXT, Fact, Parameter, Scene, Skill, SkillSet, Thing
from spec_planner.language.plan_constraint import PlanConstraint
from spec_planner.language.plan_parser import PlanParser
from spec_planner.language.tokenizer import Tokenizer
from tests.models import make_tiny_model

pytest.importorskip("llguidance")
OBJECT, PLACE, PERSON = Parameter("object"), Parameter("place", "place"), Parameter("person", "person")
VOLUME = Parameter("volume", NUMBER, low=-2.5, high=120, decimals=1)
SPEED, WORDS = Parameter("speed", ENUM, choices=("slow", "slower", 'as "fast" as [a|b]*')), Parameter("words", TEXT)
SKILLS = SkillSet(
    (
        Skill("go_to", (PLACE,)),
        Skill("go", ()),
        Skill("pick", (OBJECT,)),
        Skill("pick_up", (OBJECT,)),
        Skill("put", (OBJECT, PLACE)),
        Skill("give", (OBJECT, PERSON)),
        Skill("pour", (OBJECT, VOLUME, SPEED)),
        Skill("say", (WORDS,)),
        Skill("_wait", ()),
    ),
    kinds={"person": ("place",), "room": ("place",)},
)
NASTY = (
    *("cup", "cup holder", "cup holder 2", "Cup", "'x' = [y]", '"quoted"', "back\\slash", "a=b", "12", "12.5", "-"),
    *(
        "🍎",
        "🍎🍏",
        "Käse",
        "Ka\u0308se",
        "чашка",
        "杯子",
        "a.b|c*[d]{2}$^?",
        "start: x",
        "/re/",
        "%ignore",
        "<|im_end|>",
    ),
    *("\\n", "\\u041", "`tick", "“smart”", "two  blanks", "#1; drop", "*", "_", "x" * 64),
)
SCENE = Scene(
    (*(Thing(name) for name in NASTY), Thing("table", "place"), Thing("tab", "place"), Thing("Anna", "person"))
)
# How Llama 3 and Qwen cut text before BPE: digits on their own, a bracket together with the line break behind it.
_SPLIT = "|".join(
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}{1,3}")
    + (r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+")
)


def llama_like(directory: Path) -> Path:
    """A tokenizer trained on plans, so that ``)\\n``, `` table)`` and ``10`` are tokens."""
    import tokenizers as tk

    made = tk.Tokenizer(tk.models.BPE())
    split = tk.pre_tokenizers.Split(tk.Regex(_SPLIT), "isolated")
    byte_level = tk.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = tk.pre_tokenizers.Sequence([split, byte_level])
    made.decoder = tk.decoders.ByteLevel()
    corpus = "".join(
        f"\n{i}. put(cup holder, table)\n{i}. go_to(table)\n{i}. pour(🍎, {i}.5, slower)" for i in range(99)
    )
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    alphabet = tk.pre_tokenizers.ByteLevel.alphabet()
    trainer = tk.trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([corpus], trainer)
    made.enable_padding(length=8)  # a setting that must not reach the grammar
    made.save(str(directory / "tokenizer.json"))
    settings_ = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|eot_id|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings_))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    return directory


def default_model(_: Path) -> Path:
    from spec_planner.engines.default_model import ensure_default_model

    pytest.importorskip("torch")
    return ensure_default_model()


MAKERS = {"tiny": make_tiny_model, "llama": llama_like, "smollm2": default_model}


@pytest.fixture(scope="module", params=MAKERS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(MAKERS[request.param](tmp_path_factory.mktemp(request.param)))


def walk(constraint: PlanConstraint, stop_ids: frozenset[int], choose: random.Random) -> list[int]:
    """Tokens drawn uniformly under the mask until an end token."""
    tokens: list[int] = []
    while len(tokens) < 9000:
        tokens.append(int(choose.choice(np.flatnonzero(constraint.allowed(tokens)))))
        if tokens[-1] in stop_ids:
            return tokens
    raise AssertionError("the walk did not end")


def check_is_valid(text: str, skills: SkillSet, scene: Scene, max_steps: int) -> None:
    parser = PlanParser(skills, scene, eager=True)
    for character in "1." + text:
        parser.feed(character)
    parser.finish()
    plan = parser.plan(ended=True)
    assert plan.complete, (text, plan.rejected)
    assert 1 <= len(plan.steps) <= max_steps
    for step in plan.steps:
        for parameter, value in zip(skills.by_name[step.skill].parameters, step.values, strict=True):
            listed = values_of(parameter, skills, scene)
            if parameter.kind == NUMBER:
                assert NumberRange.of(parameter).read(value) == value
            else:
                assert value in listed if listed is not None else value.strip()
    written = [f"{number}. {s.skill}({', '.join(s.values)})" for number, s in enumerate(plan.steps, 1)]
    if "  " not in text:  # free text may hold double blanks, which the parser joins
        assert "1." + text == "\n".join(written)


@pytest.mark.parametrize("scene", [SCENE, Scene(), Scene((Thing("cup"),))], ids=["nasty", "empty", "objects-only"])
def test_every_walk_is_a_valid_plan(tokenizer: Tokenizer, scene: Scene) -> None:
    for seed in range(25):
        constraint = PlanConstraint(tokenizer, SKILLS, scene, tokenizer.vocabulary_size + 77, max_steps=4)
        tokens = walk(constraint, tokenizer.stop_ids, random.Random(seed))
        check_is_valid(tokenizer.decode(tokens), SKILLS, scene, 4)


def steps() -> st.SearchStrategy[tuple[str, ...]]:
    def value(parameter: Parameter) -> st.SearchStrategy[str]:
        if parameter.kind == NUMBER:
            units = st.integers(-25, 1200)
            return units.map(lambda n: f"{n / 10:.1f}".removesuffix(".0") if n else "0")
        if parameter.kind == TEXT:
            letters = st.characters(categories=["L", "N", "So"], max_codepoint=0x1F64F)
            words = st.lists(st.text(letters, min_size=1, max_size=9), min_size=1, max_size=6)
            return words.map(" ".join)
        return st.sampled_from(values_of(parameter, SKILLS, SCENE))

    def step(skill: Skill) -> st.SearchStrategy[tuple[str, ...]]:
        return st.tuples(st.just(skill.name), *map(value, skill.parameters))

    return st.sampled_from(SKILLS.skills).flatmap(step)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_every_plan_is_let_through_and_forced_tokens_are_its_own(
    tokenizer: Tokenizer, plan: list[tuple[str, ...]], choose: random.Random
) -> None:
    text = "\n".join(f"{number}. {skill}({', '.join(values)})" for number, (skill, *values) in enumerate(plan, 1))[2:]
    check_is_valid(text, SKILLS, SCENE, 4)
    constraint = PlanConstraint(tokenizer, SKILLS, SCENE, max_steps=4)
    tokens = tokenizer.encode(text)
    for place, token in enumerate(tokens):
        allowed = constraint.allowed(tokens[:place])
        assert allowed[token], (text, tokenizer.decode(tokens[:place]), tokenizer.decode([token]))
        forced = constraint.forced(tokens[:place])
        assert list(forced) == tokens[place : place + len(forced)]
        assert not forced or np.flatnonzero(allowed).tolist() == [forced[0]]
    end = set(np.flatnonzero(constraint.allowed(tokens)).tolist())
    assert end >= tokenizer.stop_ids
    assert (end == tokenizer.stop_ids) == (len(plan) == 4)


def test_a_mask_depends_on_the_tokens_only(tokenizer: Tokenizer) -> None:
    choose = random.Random(3)
    for seed in range(6):
        constraint = PlanConstraint(tokenizer, SKILLS, SCENE, max_steps=4)
        path = walk(constraint, tokenizer.stop_ids, random.Random(seed))
        for place in range(len(path)):
            for _ in range(choose.randrange(3)):  # branches of a tree, some of them through forbidden tokens
                branch = path[:place]
                for _ in range(choose.randrange(1, 5)):
                    legal = np.flatnonzero(constraint.allowed(branch)).tolist()
                    branch.append(choose.choice(legal) if choose.random() < 0.8 else choose.randrange(300))
                assert constraint.allowed(branch).any()
                constraint.forced(branch)
            fresh = PlanConstraint(tokenizer, SKILLS, SCENE, max_steps=4)
            assert constraint.forced(path[:place]) == fresh.forced(path[:place])
            assert np.array_equal(constraint.allowed(path[:place]), fresh.allowed(path[:place]))


def test_after_a_forbidden_token_and_after_the_end_only_the_end_is_allowed(tokenizer: Tokenizer) -> None:
    constraint = PlanConstraint(tokenizer, SKILLS, SCENE, tokenizer.vocabulary_size + 5)
    whole = tokenizer.encode(" go()")
    stop = min(tokenizer.stop_ids)
    for tokens in ([stop], tokenizer.encode(" fly("), [*whole, stop], [*whole, stop, stop], [*whole, stop, *whole]):
        assert set(np.flatnonzero(constraint.allowed(tokens)).tolist()) == tokenizer.stop_ids
        assert constraint.forced(tokens) == ()
    first = np.flatnonzero(constraint.allowed([]))
    assert not set(first.tolist()) & tokenizer.stop_ids  # an answer has at least one step
    assert constraint.allowed(whole)[stop]
    with pytest.raises(ValueError):
        constraint.allowed([])[0] = True


def test_a_vocabulary_wider_or_narrower_than_the_tokenizers(tokenizer: Tokenizer) -> None:
    for width in (tokenizer.vocabulary_size - 30, tokenizer.vocabulary_size, tokenizer.vocabulary_size + 333):
        mask = PlanConstraint(tokenizer, SKILLS, SCENE, width).allowed([])
        assert mask.shape == (width,) and mask.dtype == np.bool_
        assert not mask[tokenizer.vocabulary_size :].any()


def test_a_single_possible_plan_is_forced_to_its_last_bracket(tokenizer: Tokenizer) -> None:
    skills = SkillSet((Skill("pick", (OBJECT,)),))
    constraint = PlanConstraint(tokenizer, skills, Scene((Thing("cup holder"),)), max_steps=1)
    tokens: list[int] = []
    while forced := constraint.forced(tokens):
        tokens += forced
    assert tokenizer.decode(tokens) == " pick(cup holder)"
    assert set(np.flatnonzero(constraint.allowed(tokens)).tolist()) == tokenizer.stop_ids


def test_five_hundred_skills_times_a_hundred_things(tokenizer: Tokenizer) -> None:
    choose = random.Random(5)
    words = [a + b for a in ("red", "Käse", "cup", "a.b", "🍎") for b in ("", " holder", " 1", "-x", "'s")]
    names = [f"{word} {number}" for number in range(4) for word in words]
    kinds = {f"kind{number}": ("object" if number % 2 else "place",) for number in range(10)}
    things = tuple(Thing(name, f"kind{number % 10}") for number, name in enumerate(names))
    made = tuple(
        Skill(f"do_{n}", tuple(Parameter(f"p{i}", f"kind{(n + i) % 10}") for i in range(n % 4))) for n in range(500)
    )
    skills, scene = SkillSet(made, kinds), Scene(things)
    for _ in range(5):
        tokens = walk(PlanConstraint(tokenizer, skills, scene, max_steps=24), tokenizer.stop_ids, choose)
        check_is_valid(tokenizer.decode(tokens), skills, scene, 24)
    text = "".join(
        f"\n{n}. do_{n}({', '.join(t.name for t in things[n % 10 : n % 10 + n % 4])})" for n in range(1, 25)
    )[3:]
    tokens = tokenizer.encode(text)
    constraint = PlanConstraint(tokenizer, skills, scene, max_steps=24)
    assert all(constraint.allowed(tokens[:place])[token] for place, token in enumerate(tokens))
    assert set(np.flatnonzero(constraint.allowed(tokens)).tolist()) == tokenizer.stop_ids


def test_tokenizers_are_kept_as_long_as_they_live_and_grammars_between_runs(tmp_path: Path) -> None:
    tokenizer = Tokenizer(llama_like(tmp_path))
    PlanConstraint(tokenizer, SKILLS, SCENE)
    library = plan_constraint._LIBRARIES[tokenizer]
    compiled = dict(library._compiled)
    PlanConstraint(tokenizer, SKILLS, Scene(SCENE.things, (Fact("robot_at", ("table",)),)))
    assert dict(library._compiled) == compiled
    for steps_ in range(1, 30):
        PlanConstraint(tokenizer, SKILLS, SCENE, max_steps=steps_)
    assert len(library._compiled) <= 8
    alive = weakref.ref(tokenizer)
    del tokenizer, library
    gc.collect()
    assert alive() is None


def test_errors_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(llama_like(tmp_path))
    with pytest.raises(GrammarError, match="no person"):
        PlanConstraint(tokenizer, SkillSet((Skill("greet", (PERSON,)),), SKILLS.kinds), Scene((Thing("hall", "room"),)))
    with pytest.raises(GrammarError, match="needs the package llguidance"), monkeypatch.context() as patch:
        patch.setitem(sys.modules, "llguidance", None)
        PlanConstraint(Tokenizer(tmp_path), SKILLS)
    endless = Tokenizer(tmp_path)
    endless.stop_ids = frozenset()
    with pytest.raises(GrammarError, match="no end-of-turn token"):
        PlanConstraint(endless, SKILLS)
