"""The planner's configuration: one frozen record, checked when made. YAML keys and ROS parameters are its fields."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from .decoding.sampling import SamplingParams

ENGINES = ("auto", "torch", "onnx", "openvino", "tensorrt")
PRECISIONS_OF = {
    "torch": ("float32", "bfloat16", "float16"),
    "onnx": ("float32", "int8", "int4"),
    "openvino": ("float32", "bfloat16", "int8"),
    "tensorrt": ("float16", "bfloat16", "float32", "int8", "int4", "fp8", "nvfp4"),
}
DEVICES_OF = {"torch": ("cpu", "cuda"), "onnx": ("cpu",), "openvino": ("cpu",), "tensorrt": ("cuda",)}
PRECISIONS = tuple(dict.fromkeys(precision for offered in PRECISIONS_OF.values() for precision in offered))
CPU_PRECISIONS = tuple(
    precision
    for precision in PRECISIONS
    if any(precision in offered and "cpu" in DEVICES_OF[engine] for engine, offered in PRECISIONS_OF.items())
)
EXACTNESS = ("tokens", "bitwise")
DRAFT_BUDGETS = ("fixed", "measured")
DEVICES = ("auto", "cpu", "cuda")


class ConfigError(ValueError):
    """A setting that cannot be used; the message names it and says what it may be."""


def _setting(default: Any, doc: str, *, low: float | None = None, high: float | None = None,
             choices: tuple[str, ...] = ()) -> Any:  # fmt: skip
    return field(default=default, metadata={"doc": doc, "low": low, "high": high, "choices": choices})


@dataclass(frozen=True)
class PlannerConfig:
    """Everything the planner can be told. Field metadata carries the description and range that ROS shows.

    Raises:
        ConfigError: a value is out of range or not one of the choices.
    """

    model: str = _setting(
        "default",
        "Target: a local Hugging Face model directory; 'default', SmolLM2-135M-Instruct fine-tuned to plan; or "
        "'default-base', the same without our training.",
    )
    drafter: str = _setting(
        "auto",
        "Drafter: auto, the best that comes with the package for this model, and lookup where none does; none; "
        "lookup (prompt lookup); draft-model; medusa, mtp, mtp-parallel, eagle1, eagle2, eagle3, dflash or dflash2, "
        "where it comes with the package for this model; or the directory of such a checkpoint. lookup+ before a "
        "drafter puts prompt lookup beside it.",
    )
    draft_model: str = _setting(
        "",
        "For drafter draft-model: its directory; empty uses the one distilled from this model, if it comes with the "
        "package, else the target's own first layers.",
    )
    draft_layers: int = _setting(
        0,
        "Layers of the target to use as draft model when draft_model is empty; 0 leaves that to draft_model, and takes "
        "five sixths where there is none.",
        low=0,
        high=256,
    )
    num_draft_tokens: int = _setting(
        15, "Most tokens drafted per verify pass; the pass scores one more.", low=1, high=63
    )
    draft_budget: str = _setting(
        "measured",
        "measured: as many draft tokens, up to num_draft_tokens, as pay by what passes cost here and what was accepted "
        "lately, and none where drafting loses; fixed: always num_draft_tokens. Exactness bitwise always fixes it, and "
        "under a rule that keeps the law only, a seed gives the same tokens again only where it is fixed.",
        choices=DRAFT_BUDGETS,
    )
    draft_branches: int = _setting(
        1, "Alternatives drafted per position; 1 drafts chains, more draft trees.", low=1, high=16
    )
    rule: str = _setting(
        "drafter-invariant",
        "Acceptance rule: drafter-invariant (same tokens); rejection, block, point-mass, recursive-rejection or "
        "traversal (same law); relaxed-typical (lossy: not the target's law).",
    )
    exactness: str = _setting(
        "tokens",
        "tokens: passes of any width (openvino: of one); bitwise: one fixed width, so that logits too are equal to the "
        "last bit.",
        choices=EXACTNESS,
    )
    engine: str = _setting(
        "auto",
        "What runs the target: torch; onnx (ONNX Runtime, CPU); openvino (CPU); tensorrt (GPU); or auto: on a GPU "
        "tensorrt with an engine_file, else torch, and on the CPU what a short trial finds to be the fastest, which is "
        "remembered.",
        choices=ENGINES,
    )
    precision: str = _setting(
        "float32",
        "Compute type of the target; int8 and int4 are its weights only, and fp8 and nvfp4 need a GPU that has them.",
        choices=PRECISIONS,
    )
    engine_file: str = _setting(
        "",
        "For engine tensorrt: the directory that spec-planner build wrote; empty uses the engine built at the first "
        "start for this model and GPU, and kept.",
    )
    device: str = _setting("auto", "Where the target runs; auto takes a GPU if torch sees one.", choices=DEVICES)
    threads: int = _setting(0, "CPU threads for the target; 0 lets the library choose.", low=0, high=1024)
    context_length: int = _setting(2048, "Tokens of prompt and answer the KV cache holds.", low=64, high=1_048_576)
    temperature: float = _setting(0.0, "0 is greedy; a goal may override it.", low=0.0, high=100.0)
    top_k: int = _setting(0, "Sample among the k likeliest tokens; 0 turns it off.", low=0, high=1_000_000)
    top_p: float = _setting(
        1.0, "Sample among the likeliest tokens that hold this much probability.", low=1e-6, high=1.0
    )
    seed: int = _setting(
        0, "Fixes every random draw; same prompt, seed and settings give the same tokens.", low=0, high=2**62
    )
    max_tokens: int = _setting(160, "Longest answer, in tokens.", low=1, high=1_048_576)
    deadline_s: float = _setting(0.0, "Seconds a goal may take from acceptance; 0 is no limit.", low=0.0, high=86_400.0)
    skills_file: str = _setting("", "YAML list of the robot's skills; empty uses the installed household skills.")
    scene_file: str = _setting("", "YAML scene (places, objects, what is where) for goals that bring none.")
    free_text: bool = _setting(
        False,
        "Let the model write what it will and reject lines that are no steps, instead of holding it to the grammar.",
    )
    hold_preconditions: bool = _setting(
        True,
        "Let a plan hold only steps whose preconditions are met when their turn comes, where the scene says where the "
        "robot and every object is.",
    )
    max_steps: int = _setting(24, "Longest plan, in steps, where it is held to the grammar.", low=1, high=200)
    stop_sequences: tuple[str, ...] = _setting((), "Texts that end an answer.")
    thinking_tokens: int = _setting(
        0,
        "How long a reasoning model may think before it plans, over and above max_tokens; 0 is not at all.",
        low=0,
        high=1_048_576,
    )
    max_instruction_bytes: int = _setting(16_384, "Longer instructions are refused.", low=1, high=1_048_576)

    def __post_init__(self) -> None:
        for entry in fields(self):
            _check(entry.name, getattr(self, entry.name), entry.metadata, type(entry.default))
        if self.exactness == "bitwise" and self.draft_branches > 1:
            raise ConfigError(
                "exactness 'bitwise' needs chains, because a tree keeps a token's keys in another slot while it is "
                "verified: set draft_branches to 1"
            )
        if self.engine != "auto":
            self._check_engine(self.engine)
        elif not self.engines:
            raise ConfigError(
                f"precision {self.precision!r} runs on a GPU only (engine tensorrt): set device to auto or cuda, or "
                f"precision to one of {', '.join(CPU_PRECISIONS)}"
            )
        if self.engine_file and "tensorrt" not in self.engines:
            raise ConfigError(
                f"engine_file is for engine tensorrt, which engine {self.engine!r} on device {self.device!r} is not: "
                f"leave engine_file empty"
            )

    def _check_engine(self, engine: str) -> None:
        offered, places = PRECISIONS_OF[engine], DEVICES_OF[engine]
        if self.precision not in offered:
            raise ConfigError(
                f"engine {engine!r} does not run in precision {self.precision!r}: set precision to one of "
                f"{', '.join(offered)}, or engine to auto"
            )
        if self.device not in ("auto", *places):
            where = "the CPU" if places == ("cpu",) else "a GPU"
            raise ConfigError(f"engine {engine!r} runs on {where} only: set device to auto or {places[0]}")

    @property
    def engines(self) -> tuple[str, ...]:
        """The engine; where it is ``auto``, all that have the precision and run on the device."""
        if self.engine != "auto":
            return (self.engine,)
        return tuple(
            engine
            for engine, offered in PRECISIONS_OF.items()
            if self.precision in offered and self.device in ("auto", *DEVICES_OF[engine])
        )

    @property
    def engine_name(self) -> str:
        """The engine. ``auto`` is named when the planner is loaded (``engine_choice.py``); before that the first that
        could be, for whoever only estimates.
        """
        return self.engines[0]

    @property
    def pass_width(self) -> int | None:
        """The one width of all verify passes, plain decoding included; None where each may have its own.

        Equal bits need it. So do equal tokens on OpenVINO, where logits may change with the width by more than a near
        tie, and where a wide pass costs little more than a narrow one.
        """
        return self.num_draft_tokens + 1 if self.exactness == "bitwise" or self.engine_name == "openvino" else None

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(self.temperature, self.top_k, self.top_p, self.seed)

    def draft_layers_of(self, num_layers: int) -> int:
        """How many of a target's ``num_layers`` make its own draft model.

        A stand-in, not a bargain: with much fewer than five sixths of its layers a model no longer says what it says
        with all of them (measured on the default target: 1.0 tokens per pass at 20 of 30 layers, 1.7 at 25).
        """
        return min(self.draft_layers or -(-5 * num_layers // 6), num_layers)

    @classmethod
    def from_mapping(cls, values: dict[str, Any]) -> PlannerConfig:
        """From parsed YAML or ROS parameters; an unknown key is refused by name."""
        known = {entry.name for entry in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"unknown setting {', '.join(unknown)}; the settings are {', '.join(sorted(known))}")
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


_KINDS = {bool: "true or false", str: "a text", int: "a whole number", float: "a number", tuple: "a list of texts"}


def _check(name: str, value: Any, rule: Any, kind: type) -> None:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ConfigError(f"{name} must be {_KINDS[kind]}, got {value!r}")
    if kind is tuple and not all(isinstance(item, str) and item for item in value):
        raise ConfigError(f"{name} must be a list of non-empty strings, got {value!r}")
    if rule["choices"] and value not in rule["choices"]:
        raise ConfigError(f"{name} must be one of {', '.join(rule['choices'])}, got {value!r}")
    # A comparison with NaN is False, so it is out of range like any other.
    if rule["low"] is not None and not rule["low"] <= value <= rule["high"]:
        raise ConfigError(f"{name} must be between {rule['low']} and {rule['high']}, got {value}")
