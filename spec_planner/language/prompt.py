"""Instruction, skills and scene → the chat messages a target plans from.

Worded and ordered by trial on SmolLM2-135M-Instruct, greedy, over ``config/instructions.txt``. A model this small
copies the form and the length of its examples, the last one most: so every example has five steps or more, and the
commonest task (fetch and put away) comes last. Names keep their spelling from the instruction, blanks included, which
such a model copies more faithfully than it joins words, and which prompt lookup finds again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .plan import Scene, Skill

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
        return "\n".join(f"{i}. {skill}({', '.join(values)})" for i, (skill, *values) in enumerate(self.calls, 1))


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


def build_prompt(instruction: str, skills: Sequence[Skill], scene: Scene) -> Prompt:
    """Messages for one instruction: the skills, a few examples in the plan's own format, the scene and the task.

    Raises:
        PromptError: the instruction is blank, or there is no skill to plan with.
    """
    if not instruction.strip():
        raise PromptError("the instruction is empty: say in a sentence what the robot should do")
    if not skills:
        raise PromptError("there is no skill to plan with: name at least one, such as pick(object)")
    system = (
        f"You plan for a robot. Skills: {', '.join(skill.signature for skill in skills)}. "
        f"Answer with numbered steps, one skill per line."
    )
    messages = [_message("system", system)]
    for example in _examples_for(skills):
        messages += [_message("user", f"Task: {example.instruction}"), _message("assistant", example.answer)]
    messages.append(_message("user", f"{_describe(scene)}Task: {instruction.strip()}"))
    return Prompt(tuple(messages), ANSWER_START)


def _examples_for(skills: Sequence[Skill]) -> Sequence[_Example]:
    """Examples use only what the robot can do: those that fit its list, else one spelled from the list itself."""
    arity = {skill.name: len(skill.parameters) for skill in skills}
    fitting = [example for example in _EXAMPLES if example.fits(arity)]
    return fitting or [_spelled_from(skills[:5])]


def _spelled_from(skills: Sequence[Skill]) -> _Example:
    calls = tuple((skill.name, *(f"{parameter} A" for parameter in skill.parameters)) for skill in skills)
    task = ", then ".join(" ".join((skill.replace("_", " "), *values)) for skill, *values in calls)
    return _Example(f"{task[:1].upper()}{task[1:]}.", calls)


def _describe(scene: Scene) -> str:
    objects = f"Objects: {', '.join(scene.objects)}.\n" if scene.objects else ""
    places = f"Places: {', '.join(scene.places)}.\n" if scene.places else ""
    return objects + places


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
