"""What the conditions of a problem leave open, or say twice: in a sentence, as far as the names of faces and derivatives tell."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from sapm.conditions import Dirichlet, Initial, InitialVelocity, Neumann, Observed, Periodic
from sapm.pointwise import place
from sapm.shapes import stem
from sapm.unknown import called


def no_two_contradict(problem: Any) -> None:
    """Refuse two conditions that give u, or its normal derivative, different values on the same face."""
    domain, fields = problem.domain, problem.fields
    for kind in ((Initial, Dirichlet), (Neumann,)):
        alike = [c for c in problem.stated if isinstance(c, kind) and np.ndim(c.points) == 0]  # points given may be anywhere
        for one, other in combinations(alike, 2):
            common = set(one.meant(fields)) & set(other.meant(fields))
            for face in (face for face in problem.faces(one) if face in problem.faces(other)):
                x = domain.face_points(face, 8)
                first, second = (c.datum(domain, x, len(c.meant(fields))) for c in (one, other))
                for i in common:
                    a, b = first[:, one.meant(fields).index(i)], second[:, other.meant(fields).index(i)]
                    if not np.allclose(a, b, 1e-3, 1e-3 * np.abs([a, b]).max()):
                        worst = int(np.argmax(np.abs(a - b)))
                        raise ValueError(
                            f"two conditions are on {face} and speak against each other: at "
                            f"{place(domain.names, x[worst])} {type(one).__name__} says {a[worst]:.6g} and "
                            f"{type(other).__name__} {b[worst]:.6g}; leave one out, or say by faces= where each holds."
                        )


def left_open(problem: Any) -> str:
    """A sentence on what a second-order or nonlinear equation lacks; "" if nothing."""
    equation, domain, stated, fields = problem.equation, problem.domain, problem.stated, problem.fields
    keys, names, told = equation.keys, domain.names, _told(problem)
    covered = {face for face, _, kind in told if kind == "value"}
    if any(isinstance(c, Observed) for c in stated):
        return ""
    given = {i for c in stated for i in c.meant(fields)}
    if stated and (lacking := [i for i in range(len(fields)) if i not in given and not _follows(problem, i, told)]):
        missing = fields[lacking[0]]
        if () not in equation.keys_of_fields(domain.points(8, 1))[lacking[0]]:
            return (
                f"the problem is not well posed: only derivatives of {missing} occur and no condition is about it, so {missing} "
                f"+ constant solves it as well; its value at one point is enough: sapm.Observed([point], [u], of={missing!r})."
            )
        return f"the problem may not be well posed: no condition is about {missing}; add one with of={missing!r}."
    if equation.rows < len(fields):
        many = f"{equation.rows} equation{'s' * (equation.rows > 1)}"
        return f"the problem is not well posed: {many} for {len(fields)} unknown functions."
    if all(c.about == "derivative" for c in stated) and () not in keys:
        return "the problem is not well posed: no condition says what u itself is, so u + constant solves it as well."
    if any("t" in key for key in keys) and not covered & {"t-", "t+"}:
        return "the problem is not well posed: no condition says what u is at the lower end of t; add sapm.Initial(g)."
    if ("t", "t") in keys and "t+" not in covered and not any(isinstance(c, InitialVelocity) for c in stated):
        return f"the problem is not well posed: it contains {called(('t', 't'))}; add sapm.InitialVelocity(g)."
    bent = [name for name in names if (name, name) in keys and name != "t" and name not in _around(problem)]
    met = {face for c in stated for face in problem.faces(c)}
    open_ = [
        f for f in domain.faces if f not in met and (of := stem(f)[:-1]) != "t" and (of in bent or (bent and of not in names))
    ]
    if open_ and not (len(names) == 1 and all(_often_told(told, i, names[0], names) > 1 for i in _bent(problem))):
        of = stem(open_[0])[:-1]  # an ordinary equation may have all at one end
        by = called((of, of) if of in bent else (bent[0], bent[0]))
        return f"the problem may not be well posed: it contains {by}, and no condition is on {', '.join(open_)}; add one there."
    if equation.parameters and not _more_than_needed(problem, told):
        wanted = ", ".join(equation.parameters)
        return f"nothing may determine {wanted}: no value of u is known beyond what the equation needs; add sapm.Observed(x, u)."
    return ""


Told = set[tuple[str, int, str]]


def _told(problem: Any) -> Told:
    """(face, function, "value" or "slope") for all that conditions say."""
    kinds = {True: "value", False: "slope"}
    fields, faces = problem.fields, problem.faces
    return {(stem(f), i, kinds[c.about == "value"]) for c in problem.stated for f in faces(c) for i in c.meant(fields)}


def _around(problem: Any) -> set[str]:
    return {problem.domain.names[i] for c in problem.conditions if isinstance(c, Periodic) for i in c.indices(problem.domain)}


def _often_told(told: Told, i: int, along: str, names: tuple[str, ...]) -> int:
    """How many conditions on function i there are at the ends of a coordinate; a curved face has two of every one."""
    ends = [face[:-1] for face, of, _ in told if of == i]
    return ends.count(along) + 2 * sum(end not in names for end in ends)


def _bent(problem: Any) -> list[int]:
    """Functions with second derivatives."""
    if len(problem.fields) == 1:
        return [0]
    mine = problem.equation.keys_of_fields(problem.domain.points(8, 1))
    return [i for i, keys in enumerate(mine) if any(len(key) == 2 for key in keys)]


def _follows(problem: Any, i: int, told: Told) -> bool:
    """Whether function i is another one's derivatives by another name, and that one is told as much as both together need.

    An equation then has function i itself and no derivative of it, and of one other function, j, derivatives. With these in the
    place of i the others are equations for j, of a higher order.
    """
    equation, names = problem.equation, problem.domain.names
    keys, others = equation.keys, [j for j in range(len(problem.fields)) if j != i]
    if () not in keys or not others:
        return False
    used = np.any(equation.slopes(problem.domain.points(8, 1)) != 0, axis=0)  # rows, keys, fields
    order = lambda on, name: max((key.count(name) for key, is_on in zip(keys, on, strict=True) if is_on), default=0)  # noqa: E731
    for row in used:
        mine, by = row[:, i], [j for j in others if row[:, j].any()]
        if not mine[keys.index(())] or mine.sum() > 1 or len(by) != 1:
            continue
        along = [name for name in names if name not in _around(problem)]
        wanted = {name: order(used[:, :, i].any(0), name) + order(row[:, by[0]], name) for name in along}
        if all(_often_told(told, by[0], name, names) >= count for name, count in wanted.items()):
            return True
    return False


def _more_than_needed(problem: Any, told: Told) -> bool:
    """Whether faces have more data than the equation asks for, from which its parameters may follow."""
    equation, domain, fields = problem.equation, problem.domain, problem.fields
    if equation.rows > len(fields) or any(face[:-1] in _around(problem) for face, _, _ in told):
        return True
    both = {face for face, i, kind in told if kind == "slope" and (face, i, "value") in told}
    both -= {"t-"} if ("t", "t") in equation.keys else set()
    values = {(face, i) for face, i, kind in told if kind == "value"}
    twice = [
        {(f"{name}-", i), (f"{name}+", i)} <= values and max(key.count(name) for key in mine) == 1
        for i, mine in enumerate(equation.keys_of_fields(domain.points(8, 1)))
        for name in domain.names
        if mine
    ]
    return bool(both) or any(face == "t+" for face, _ in values) or any(twice)
