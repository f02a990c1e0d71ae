"""Configuration → running pipeline. It, ``target_loading.py`` and ``draft_loading.py`` alone know concrete classes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from drafters.registry import drafter_class, graft

from .config import ConfigError, PlannerConfig
from .decoding.accept import Rule
from .decoding.contracts import Drafter, Incompatible, check_compatible
from .decoding.draft_budget import DraftBudget, FixedBudget
from .decoding.exact_rules import get_rule
from .decoding.measured_budget import MeasuredBudget
from .draft_loading import load_network
from .drafter_choice import GRAFT, check_fits, chosen, drafter_checkpoint
from .engine_choice import chosen_engine
from .engines.decoder_config import ModelError, read_decoder_config
from .engines.default_model import model_directory
from .engines.passes import check_context
from .engines.threads import share_the_cpu
from .language.plan import History, Scene, SkillSet
from .language.scene import load_scene
from .language.skills import load_skills
from .language.tokenizer import Tokenizer
from .memory.check import check_budget
from .pipeline.plan_pipeline import PlanPipeline
from .pipeline.types import PlanRequest
from .shipped_drafters import TREES_OF
from .target_loading import Report, load_target

if TYPE_CHECKING:
    from .target_loading import ModelTarget

_NO_HISTORY = History()


def build_pipeline(config: PlannerConfig, report: Report = lambda line: None) -> PlanPipeline:
    """Load everything ``config`` names and check that it fits together; ``report`` gets a line per slow step.

    Raises:
        ValueError: (``ConfigError``, ``ModelError``, ``Incompatible``, …) one sentence on what cannot be used and why.
    """
    rule = find_rule(config.rule)  # what costs nothing to check comes before what takes seconds to load
    check_fits(config, rule)
    share_the_cpu()  # before anything imports torch
    skills = load_skills(Path(config.skills_file) if config.skills_file else None)
    directory = model_directory(config.model, report)
    read_decoder_config(directory)  # its sentences name the file; the tokenizer's library would hide it
    config = chosen(config, directory)
    check_fits(config, rule)  # once more, where the drafter was left to us
    drafter_checkpoint(config, directory)  # before the weights are loaded
    tokenizer = Tokenizer(directory)
    check_context(read_decoder_config(directory), config.context_length, directory)
    config = chosen_engine(config, directory, report)
    check_budget(config, directory, report)
    report(f"loading {directory.name} ({config.engine}, {config.precision})")
    target = load_target(config, directory, report)
    drafter = build_drafter(config, target, report)
    budget = build_budget(config, drafter)
    return PlanPipeline(target, drafter, tokenizer, rule, budget, skills, prompt_examples(directory))


def build_budget(config: PlannerConfig, drafter: Drafter | None) -> DraftBudget:
    """How long the drafts of ``drafter`` are; bits need passes of one width, so there it is fixed."""
    if config.draft_budget == "fixed" or config.exactness == "bitwise":
        return FixedBudget(config.num_draft_tokens)
    return MeasuredBudget(config.num_draft_tokens, drafter is not None and drafter.requirements.draws_trees)


def prompt_examples(directory: Path) -> bool:
    """Whether the model in ``directory`` is to be shown a few plans first: unless it was fine-tuned for our prompt.

    Raises:
        ModelError: ``spec_planner.json``, in which the fine-tuning says so, cannot be read.
    """
    path = directory / "spec_planner.json"
    if not path.is_file():
        return True
    try:
        wanted = json.loads(path.read_text(encoding="utf-8"))["prompt_examples"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path} does not say whether prompt_examples is true or false: write the model again"
        ) from error
    return bool(wanted)


def read_scene(config: PlannerConfig, skills: SkillSet) -> Scene:
    """The scene of goals that bring none.

    Raises:
        SceneError: the file cannot be used.
    """
    return load_scene(config.scene_file, skills) if config.scene_file else Scene()


def make_request(
    config: PlannerConfig,
    instruction: str,
    scene: Scene,
    skills: SkillSet | None = None,
    history: History = _NO_HISTORY,
    deadline: float | None = None,
    plain: bool = False,
) -> PlanRequest:
    """What ``config`` says about every request, and what is this one's own. ``deadline``: on ``time.monotonic()``."""
    return PlanRequest(
        instruction=instruction,
        sampling=config.sampling,
        max_tokens=config.max_tokens,
        scene=scene,
        skills=skills,
        history=history,
        deadline=deadline,
        plain=plain,
        free_text=config.free_text,
        hold_preconditions=config.hold_preconditions,
        max_steps=config.max_steps,
        stop=config.stop_sequences,
        thinking_tokens=config.thinking_tokens,
    )


def find_rule(name: str) -> Rule:
    """An acceptance rule by name; the relaxed ones, which change the output, carry it in their names."""
    if name.startswith("relaxed-"):
        from .decoding.relaxed import RELAXED_RULES

        if name in RELAXED_RULES:
            return RELAXED_RULES[name]()
        raise ConfigError(f"no relaxed rule is called {name!r}; there is {', '.join(RELAXED_RULES)}")
    return get_rule(name)


def build_drafter(config: PlannerConfig, target: ModelTarget, report: Report = lambda line: None) -> Drafter | None:
    """The drafter that ``config`` names, checked against ``target``; None for ``none``.

    Raises:
        ValueError: it cannot be loaded, or does not fit the target.
    """
    directory = model_directory(config.model)
    config = chosen(config, directory)
    if config.drafter == "none":
        return None
    name = config.drafter.removeprefix(GRAFT)
    branches = max(config.draft_branches, TREES_OF.get(name, 1))
    drafter: Drafter
    if name == "lookup":
        drafter = drafter_class("lookup")(branches=branches)
    else:
        checkpoint = drafter_checkpoint(config, directory)
        if checkpoint is None:
            drafter = drafter_class("draft-model")(_draft_net(config, target, report), siblings=branches)
        else:
            report(f"loading drafter {checkpoint.name}")
            drafter = load_network(checkpoint, config, target, branches, report)
    if name != config.drafter:
        drafter = graft(drafter, branches)
    check_compatible(target.info, drafter)
    return drafter


def _draft_net(config: PlannerConfig, target: ModelTarget, report: Report) -> ModelTarget:
    """The network of a draft model: a checkpoint with the target's vocabulary, or the target's own first layers."""
    if not config.draft_model:
        return target.first_layers(config.draft_layers_of(target.info.num_layers), config.context_length)
    directory, target_directory = model_directory(config.draft_model), model_directory(config.model)
    if Tokenizer(directory).vocabulary != Tokenizer(target_directory).vocabulary:
        raise Incompatible(
            f"draft model {directory} has another vocabulary than target {target_directory}: use one with the same"
        )
    report(f"loading draft model {directory.name}")
    return load_target(replace(config, engine=target.info.engine, engine_file=""), directory, report)
