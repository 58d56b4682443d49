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
    keys, names = equation.keys, domain.names
    covered = {stem(face) for c in stated if c.about == "value" for face in problem.faces(c)}
    if any(isinstance(c, Observed) for c in stated):
        return ""
    twice = _given_twice(problem)
    given = {i for c in stated for i in c.meant(fields)} | (_named(problem) if twice else set())
    if stated and len(given) < len(fields):
        missing = next(name for i, name in enumerate(fields) if i not in given)
        return f"the problem may not be well posed: no condition is about {missing}; add one with of={missing!r}."
    if equation.rows < len(fields):
        return f"the problem is not well posed: {equation.rows} equations for {len(fields)} unknown functions."
    if all(c.about == "derivative" for c in stated) and () not in keys:
        return "the problem is not well posed: no condition says what u itself is, so u + constant solves it as well."
    if any("t" in key for key in keys) and not covered & {"t-", "t+"}:
        return "the problem is not well posed: no condition says what u is at the lower end of t; add sapm.Initial(g)."
    if ("t", "t") in keys and "t+" not in covered and not any(isinstance(c, InitialVelocity) for c in stated):
        return f"the problem is not well posed: it contains {called(('t', 't'))}; add sapm.InitialVelocity(g)."
    round_and_round = {names[i] for c in problem.conditions if isinstance(c, Periodic) for i in c.indices(domain)}
    bent = [name for name in names if (name, name) in keys and name != "t" and name not in round_and_round]
    met = {face for c in stated for face in problem.faces(c)}
    open_ = [
        f for f in domain.faces if f not in met and (of := stem(f)[:-1]) != "t" and (of in bent or (bent and of not in names))
    ]
    if open_ and not (len(names) == 1 and twice):  # an ordinary equation may have all at one end
        of = stem(open_[0])[:-1]
        by = called((of, of) if of in bent else (bent[0], bent[0]))
        return f"the problem may not be well posed: it contains {by}, and no condition is on {', '.join(open_)}; add one there."
    if equation.parameters and not _more_than_needed(problem, covered):
        wanted = ", ".join(equation.parameters)
        return f"nothing may determine {wanted}: no value of u is known beyond what the equation needs; add sapm.Observed(x, u)."
    return ""


def _given_twice(problem: Any) -> set[str]:
    """Faces on which both the value and the slope of a function are given."""
    fields = problem.fields
    pairs = [(c.about == "value", stem(f), i) for c in problem.stated for f in problem.faces(c) for i in c.meant(fields)]
    slopes, values = ({(f, i) for value, f, i in pairs if value is wanted} for wanted in (False, True))
    return {face for face, _ in slopes & values}


def _named(problem: Any) -> set[int]:
    """Functions that are other functions' derivatives by another name: an equation has them, and no derivative of them."""
    keys = problem.equation.keys
    if () not in keys:
        return set()
    used = np.any(problem.equation.slopes(problem.domain.points(8, 1)) != 0, axis=0)  # rows, keys, fields
    alone = used[:, keys.index(())] & ~np.delete(used, keys.index(()), axis=1).any(1)
    return set(np.flatnonzero(alone.any(0)).tolist())


def _more_than_needed(problem: Any, covered: set[str]) -> bool:
    """Whether faces have more data than the equation asks for, from which its parameters may follow."""
    equation, domain, stated, fields = problem.equation, problem.domain, problem.stated, problem.fields
    around = {name for c in problem.conditions if isinstance(c, Periodic) for name in c.coordinates}
    if equation.rows > len(fields) or any(stem(f)[:-1] in around for c in stated for f in problem.faces(c)):
        return True
    both = _given_twice(problem) - ({"t-"} if ("t", "t") in equation.keys else set())
    values = {(stem(f), i) for c in stated if c.about == "value" for f in problem.faces(c) for i in c.meant(fields)}
    twice = [
        {f"{name}-", f"{name}+"} <= {f for f, of in values if of == i} and max(key.count(name) for key in mine) == 1
        for i, mine in enumerate(equation.keys_of_fields(domain.points(8, 1)))
        for name in domain.names
        if mine
    ]
    return bool(both) or "t+" in covered or any(twice)
