"""Shortest plans for small abstract problems, by unified-planning and pyperplan. The only file that imports them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..language.plan import PLACE, Condition, Fact, Parameter, Skill, SkillSet
from .task import TaskError

MISSING = (
    "expert plans need {name}, which is not installed: "
    "pip install 'spec_planner[tasks]', or unified-planning, up-pyperplan and pyperplan"
)
_ENGINE = "pyperplan-opt"


@dataclass(frozen=True)
class Problem:
    """What to reach from where, over a few things.

    Attributes:
        kinds: kind of each thing.
        values: for a number or choice, the names of the parameters it may stand for.
        facts: what holds, the robot's own state included.
        goal: one condition.
    """

    kinds: tuple[tuple[str, str], ...]
    values: tuple[tuple[str, tuple[str, ...]], ...]
    facts: tuple[Fact, ...]
    goal: Condition


Step = tuple[str, tuple[str, ...]]  # skill, values


def solve(problem: Problem, skills: SkillSet) -> tuple[Step, ...] | None:
    """The steps of a shortest plan; None where there is none.

    Raises:
        TaskError: the planner is not installed.
    """
    try:
        import unified_planning as up
        import unified_planning.engines
        import unified_planning.shortcuts as shortcuts
        import up_pyperplan  # noqa: F401  the engine the factory starts by name
    except ImportError as error:
        raise TaskError(MISSING.format(name=error.name or "unified-planning")) from error
    environment = up.shortcuts.get_environment()
    environment.credits_stream = None
    kind = unified_planning.engines.CompilationKind.NEGATIVE_CONDITIONS_REMOVING
    described, skill_of = _describe(problem, skills, shortcuts)
    with environment.factory.Compiler(problem_kind=described.kind, compilation_kind=kind) as compiler:
        compiled = compiler.compile(described, kind)
    with environment.factory.OneshotPlanner(name=_ENGINE) as planner:
        result = planner.solve(compiled.problem)
    if result.plan is None:
        return None
    plan = result.plan.replace_action_instances(compiled.map_back_action_instance)
    steps = []
    for action in plan.actions:
        skill = skill_of[action.action.name]
        names = [str(value)[len("thing_") :] for value in action.actual_parameters]
        steps.append((skill.name, tuple(names[: len(skill.parameters)])))
    return tuple(steps)


def _describe(problem: Problem, skills: SkillSet, up):  # type: ignore[no-untyped-def]
    """The problem in unified-planning's terms; kinds are facts there, since a kind here may have two parents."""
    described = up.Problem("problem")
    thing = up.UserType("anything")
    fluents = {}

    def fluent(predicate: str, arity: int):  # type: ignore[no-untyped-def]
        key = f"{predicate}_{arity}"
        if key not in fluents:
            fluents[key] = up.Fluent(key, up.BoolType(), **{f"a{i}": thing for i in range(arity)})
            described.add_fluent(fluents[key], default_initial_value=False)
        return fluents[key]

    for kind in _kinds_used(skills):
        fluent(f"is_{kind}", 1)
    skill_of = {}
    for skill in skills:
        if not skill.effects:
            continue
        parameters = (*skill.parameters, *skill.variables)
        action = up.InstantaneousAction(f"do_{skill.name}", **{f"v_{p.name}": thing for p in parameters})
        skill_of[action.name] = skill
        value = {p.name: action.parameter(f"v_{p.name}") for p in parameters}
        for parameter in parameters:
            action.add_precondition(fluent(f"is_{_sort(parameter)}", 1)(value[parameter.name]))
        for condition in skill.preconditions:
            fact = fluent(condition.fact.predicate, len(condition.fact.arguments))(
                *(value[a] for a in condition.fact.arguments)
            )
            action.add_precondition(fact if condition.holds else up.Not(fact))
        for effect in skill.effects:
            fact = fluent(effect.fact.predicate, len(effect.fact.arguments))(*(value[a] for a in effect.fact.arguments))
            action.add_effect(fact, effect.holds)
        described.add_action(action)
    objects = {name: up.Object(f"thing_{name}", thing) for name, _ in (*problem.kinds, *problem.values)}
    described.add_objects(list(objects.values()))
    sorts: Mapping[str, tuple[str, ...]] = {
        **{name: tuple(k for k in _kinds_used(skills) if skills.is_a(kind, k)) for name, kind in problem.kinds},
        **{name: tuple(f"value_{p}" for p in parameters) for name, parameters in problem.values},
    }
    for name, names in sorts.items():
        for sort in names:
            described.set_initial_value(fluent(f"is_{sort}", 1)(objects[name]), True)
    for fact in problem.facts:
        described.set_initial_value(
            fluent(fact.predicate, len(fact.arguments))(*(objects[a] for a in fact.arguments)), True
        )
    fact = problem.goal.fact
    wanted = fluent(fact.predicate, len(fact.arguments))(*(objects[a] for a in fact.arguments))
    described.add_goal(wanted if problem.goal.holds else up.Not(wanted))
    return described, skill_of


def _sort(parameter: Parameter) -> str:
    return parameter.kind if parameter.names_a_thing else f"value_{parameter.name}"


def _kinds_used(skills: SkillSet) -> tuple[str, ...]:
    used = {p.kind for skill in skills for p in (*skill.parameters, *skill.variables) if p.names_a_thing}
    return tuple(sorted(used | {PLACE}))


def value_parameters(fact: Fact, index: int, skills: SkillSet, begun: bool) -> tuple[str, ...]:
    """Parameters that argument ``index`` of ``fact`` can be the value of: of effects (``begun``) or preconditions."""
    found: list[str] = []

    def visit(skill: Skill) -> None:
        values = {p.name for p in (*skill.parameters, *skill.variables) if not p.names_a_thing}
        for condition in skill.effects if begun else skill.preconditions:
            same = condition.fact.predicate == fact.predicate and len(condition.fact.arguments) == len(fact.arguments)
            if condition.holds and same and condition.fact.arguments[index] in values:
                found.append(condition.fact.arguments[index])

    for skill in skills:
        visit(skill)
    return tuple(dict.fromkeys(found))
