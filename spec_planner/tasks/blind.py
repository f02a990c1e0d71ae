"""Plans where nothing is known about the scene: by rule, from the instruction alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .domain import Domain
from .draft import Dead, Draft
from .wording import Instruction, Said


def blind_plan(
    domain: Domain, said: Sequence[Said], instruction: Instruction, draft: Draft, constants: Mapping[str, str]
) -> tuple[str, ...]:
    """Plan lines from the clauses' rules. Raises ``Dead`` where a clause has none, or the instruction says too little.

    The robot drives only to places that are named, looks for an object before it takes it, and opens nothing it was not
    told to open.
    """
    lines: list[str] = []
    robot_at = ""
    known: dict[str, str] = {}  # object → place, as far as the plan itself knows
    for s, says_source in zip(said, instruction.says_source, strict=True):
        if s.clause.each or not s.clause.blind:
            raise Dead
        groups = list(s.names.items())  # a clause of nothing but a remark has no steps
        for index in range(max((len(group) for _, group in groups), default=1)):
            binding = dict(constants) | {role: group[min(index, len(group) - 1)] for role, group in groups}
            thing = binding.get("x", "")
            source = draft.at.get(thing, "") if says_source else ""
            source = known.get(thing, source)
            for step in s.clause.blind:
                optional, needed = step.endswith("?"), step.endswith("!")
                skill, _, rest = step.rstrip("?!").rstrip(")").partition("(")
                roles = [role.strip() for role in rest.split(",") if role.strip()]
                if "s" in roles:
                    if needed and not source:
                        raise Dead
                    if optional and not source:
                        continue
                    binding["s"] = source
                values = [binding[role] for role in roles]
                if skill == domain.skills.skills[0].name:  # driving comes first in every skill set
                    if robot_at == values[0]:
                        continue
                    robot_at = values[0]
                elif skill == "find":
                    if thing in known:
                        continue
                    known[thing] = robot_at = source
                elif "p" in roles and "x" in roles:
                    known[thing] = binding["p"]
                if robot_at in draft.places and not _fits(domain, skill, draft.places[robot_at].kind):
                    raise Dead
                lines.append(f"{skill}({', '.join(values)})")
    return tuple(lines)


def _fits(domain: Domain, skill: str, kind: str) -> bool:
    """Whether a thing can be got at a place of ``kind`` with ``skill``: goods in a truck are unloaded, not lifted."""
    entry = domain.skills.by_name[skill]
    kinds = {variable.name: variable.kind for variable in entry.variables}
    return all(
        domain.skills.is_a(kind, kinds[condition.fact.arguments[1]])
        for condition in entry.preconditions
        if condition.fact.predicate == "at" and condition.fact.arguments[1] in kinds
    )
