"""Configuration → running pipeline. The only file that knows every concrete class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from drafters.registry import DRAFTERS, drafter_class

from .config import ConfigError, PlannerConfig
from .decoding.accept import Rule
from .decoding.contracts import Drafter, Incompatible, check_compatible
from .decoding.draft_budget import FixedBudget
from .decoding.exact_rules import get_rule
from .engines.decoder_config import ModelError
from .language.skills import load_skills
from .language.tokenizer import Tokenizer
from .pipeline.plan_pipeline import PlanPipeline

if TYPE_CHECKING:
    from .engines.torch_target import TorchTarget

Report = Callable[[str], None]


def build_pipeline(config: PlannerConfig, report: Report = lambda line: None) -> PlanPipeline:
    """Load everything ``config`` names and check that it fits together; ``report`` gets a line per slow step.

    Raises:
        ValueError: (``ConfigError``, ``ModelError``, ``Incompatible``, …) one sentence on what cannot be used and why.
    """
    rule = find_rule(config.rule)  # what costs nothing to check comes before what takes seconds to load
    if config.drafter not in ("none", *DRAFTERS):
        raise ConfigError(f"no drafter is called {config.drafter!r}; choose none, {', '.join(DRAFTERS)}")
    skills = load_skills(Path(config.skills_file) if config.skills_file else None)
    directory = model_directory(config.model, report)
    tokenizer = Tokenizer(directory)
    report(f"loading {directory.name} ({config.precision})")
    target = _load_target(config, directory)
    drafter = _build_drafter(config, directory, target, report)
    check_compatible(target.info, drafter)
    return PlanPipeline(target, drafter, tokenizer, rule, FixedBudget(config.num_draft_tokens), skills)


def find_rule(name: str) -> Rule:
    """An acceptance rule by name; the relaxed ones, which change the output, carry it in their names."""
    if name.startswith("relaxed-"):
        from .decoding.relaxed import RELAXED_RULES

        if name in RELAXED_RULES:
            return RELAXED_RULES[name]()
    return get_rule(name)


def model_directory(model: str, report: Report = lambda line: None) -> Path:
    """Resolve the ``model`` setting to a local directory.

    Raises:
        ModelError: it does not exist.
    """
    if model == "default":
        from .engines.default_model import ensure_default_model

        return ensure_default_model(report)
    directory = Path(model).expanduser()
    if not directory.is_dir():
        raise ModelError(f"model {model!r} is not a directory: give a local Hugging Face model directory, or 'default'")
    return directory


def _load_target(config: PlannerConfig, directory: Path) -> TorchTarget:
    try:
        from .engines.torch_target import TorchTarget
    except ImportError as error:
        raise ModelError(f"engine 'torch' needs the package {error.name}: install it, then configure again") from error
    return TorchTarget.load(
        directory,
        context_length=config.context_length,
        precision=config.precision,
        device=config.device,
        threads=config.threads,
        pass_width=config.num_draft_tokens + 1 if config.exactness == "bitwise" else None,
    )


def _build_drafter(config: PlannerConfig, directory: Path, target: TorchTarget, report: Report) -> Drafter | None:
    if config.drafter == "none":
        return None
    if config.drafter == "lookup":
        lookup: Drafter = drafter_class("lookup")(branches=config.draft_branches)
        return lookup
    if config.draft_model:
        draft_directory = model_directory(config.draft_model)
        if Tokenizer(draft_directory).vocabulary != Tokenizer(directory).vocabulary:
            raise Incompatible(
                f"draft model {draft_directory} has another vocabulary than target {directory}: use one with the same"
            )
        report(f"loading draft model {draft_directory.name}")
        net = _load_target(config, draft_directory)
    else:
        net = target.first_layers(config.draft_layers, config.context_length)
    drafter: Drafter = drafter_class("draft-model")(net, siblings=config.draft_branches)
    return drafter
