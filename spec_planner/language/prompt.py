"""Instruction, skills, scene and history → the chat messages a target plans from.

What changes least comes first (skills, then the scene, then what was done, then the task), so that the next goal finds
most of its prompt in the KV cache. A target fine-tuned for this text (``spec-planner finetune``) needs no examples.

The examples for other targets were worded and ordered by trial on SmolLM2-135M-Instruct, greedy, over
``config/instructions.txt``. A model this small copies the form and the length of its examples, the last one most: so
every example has five steps or more, and the commonest task (fetch and put away) comes last. Names keep their spelling
from the instruction, blanks included, which such a model copies more faithfully than it joins words, and which prompt
lookup finds again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .plan import ENUM, NUMBER, PLACE, Fact, History, Parameter, Scene, Skill, SkillSet, Thing

ANSWER_START = "1."  # the assistant's turn begins with it, so the first token is already a step


class PromptError(ValueError):
    """A request that no prompt can be made from; the message says what is missing."""


@dataclass(frozen=True)
class Prompt:
    """What to encode, and the text with which the answer already begins (part of the answer as shown)."""

    messages: tuple[dict[str, str], ...]
    answer_start: str


@dataclass(frozen=True)
class _Example:
    instruction: str
    calls: tuple[tuple[str, ...], ...]  # skill, value, value, …

    def fits(self, arity: dict[str, int]) -> bool:
        return all(arity.get(skill) == len(values) for skill, *values in self.calls)

    @property
    def answer(self) -> str:
        return plan_text([f"{skill}({', '.join(values)})" for skill, *values in self.calls])


_EXAMPLES = (
    _Example(
        "Close the curtain, clean the mirror and turn off the radio.",
        (
            ("go_to", "curtain"),
            ("close", "curtain"),
            ("go_to", "mirror"),
            ("clean", "mirror"),
            ("go_to", "radio"),
            ("turn_off", "radio"),
        ),
    ),
    _Example(
        "Bring the old book from the bedroom to Anna.",
        (
            ("go_to", "bedroom"),
            ("find", "old book"),
            ("pick", "old book"),
            ("go_to", "Anna"),
            ("give", "old book", "Anna"),
        ),
    ),
    _Example(
        "Put the blue box from the hall in the closet.",
        (
            ("go_to", "hall"),
            ("find", "blue box"),
            ("pick", "blue box"),
            ("go_to", "closet"),
            ("open", "closet"),
            ("put", "blue box", "closet"),
            ("close", "closet"),
        ),
    ),
)


_NO_HISTORY = History()


def build_prompt(
    instruction: str, skills: SkillSet, scene: Scene, history: History = _NO_HISTORY, examples: bool = True
) -> Prompt:
    """Messages for one instruction.

    Args:
        history: what was done before a replan; it stands between the scene and the task.
        examples: show a few plans first, for a target that was not trained on this prompt.

    Raises:
        PromptError: the instruction is blank, or there is no skill to plan with.
    """
    if not instruction.strip():
        raise PromptError("the instruction is empty: say in a sentence what the robot should do")
    if not skills:
        raise PromptError("there is no skill to plan with: name at least one, such as pick(object)")
    system = (
        f"You plan for a robot. Skills: {', '.join(map(_shown, skills))}. "
        f"Answer with numbered steps, one skill per line."
    )
    messages = [_message("system", system)]
    if examples:
        for example in _examples_for(skills):
            messages += [_message("user", f"Task: {example.instruction}"), _message("assistant", example.answer)]
    task = " ".join(instruction.split())  # one line: what follows a line break would read like another part
    lines = [*_scene_lines(scene, skills), *_history_lines(history), f"Task: {task}"]
    messages.append(_message("user", "\n".join(lines)))
    return Prompt(tuple(messages), ANSWER_START)


def plan_text(lines: Sequence[str]) -> str:
    """Plan lines (``pick(cup)``) as an answer: numbered, one per line."""
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))


def _shown(skill: Skill) -> str:
    """The signature, with what numbers and choices may be: ``heat(object, temperature in C)``, ``drive(slow|fast)``."""
    return f"{skill.name}({', '.join(map(_shown_parameter, skill.parameters))})"


def _shown_parameter(parameter: Parameter) -> str:
    if parameter.kind == NUMBER and parameter.unit:
        return f"{parameter.name} in {parameter.unit}"
    return "|".join(parameter.choices) if parameter.kind == ENUM else parameter.name


def _scene_lines(scene: Scene, skills: SkillSet) -> list[str]:
    """``Places: …``, ``Objects: …`` and ``Robot: …``, each only if there is something to say."""
    where = {fact.arguments[0]: fact.arguments[1] for fact in scene.facts if _is(fact, "at", 2)}
    states: dict[str, list[str]] = {}
    for fact in scene.facts:
        if len(fact.arguments) == 1 and not _is(fact, "robot_at", 1) and not _is(fact, "holding", 1):
            states.setdefault(fact.arguments[0], []).append(fact.predicate.replace("_", " "))

    def shown(thing: Thing) -> str:
        state = f" ({', '.join(states[thing.name])})" if thing.name in states else ""
        place = f" at {where[thing.name]}" if thing.name in where else ""
        return f"{thing.name}{state}{place}"

    places = [shown(thing) for thing in scene.things if skills.is_a(thing.kind, PLACE)]
    objects = [shown(thing) for thing in scene.things if not skills.is_a(thing.kind, PLACE)]
    robot = [
        f"{word} {fact.arguments[0]}"
        for predicate, word in (("robot_at", "at"), ("holding", "holding"))
        for fact in scene.facts
        if _is(fact, predicate, 1)
    ]
    titled = (("Places", places), ("Objects", objects), ("Robot", robot))
    return [f"{title}: {', '.join(entries)}." for title, entries in titled if entries]


def _history_lines(history: History) -> list[str]:
    lines = [f"Done: {', '.join(history.done)}."] if history.done else []
    if history.failed:
        reason = " ".join(history.failure.split()).rstrip(".")
        lines.append(f"Failed: {history.failed}{f': {reason}' if reason else ''}.")
    return lines


def _is(fact: Fact, predicate: str, arity: int) -> bool:
    return fact.predicate == predicate and len(fact.arguments) == arity


def _examples_for(skills: SkillSet) -> Sequence[_Example]:
    """Examples use only what the robot can do: those that fit its list, else one spelled from the list itself."""
    arity = {skill.name: len(skill.parameters) for skill in skills}
    fitting = [example for example in _EXAMPLES if example.fits(arity)]
    return fitting or [_spelled_from(skills.skills[:5])]


def _spelled_from(skills: Sequence[Skill]) -> _Example:
    calls = tuple((skill.name, *(f"{parameter} A" for parameter in skill.parameter_names)) for skill in skills)
    task = ", then ".join(" ".join((skill.replace("_", " "), *values)) for skill, *values in calls)
    return _Example(f"{task[:1].upper()}{task[1:]}.", calls)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
