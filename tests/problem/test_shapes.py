"""Shapes made of shapes: points, faces, normals and measures against signed distances written by
hand; problems on them.
"""

import json
import pickle

import jax.numpy as jnp
import numpy as np
import pytest

import sapm
from sapm.problem.characteristics import solve_by_characteristics
from sapm.problem.domain import domain_from

XY = ("x", "y")
SQUARE = sapm.Box(x=(-1, 1), y=(-1, 1))
HEAT = sapm.Box(t=(0, 0.5))


def disc(radius=1.0, x=0.0, y=0.0):
    return sapm.Ball(2, radius, (x, y), XY)


def box(*ends):
    """The signed distance to a box near its faces; negative inside."""
    lower, upper = np.array(ends, float).T
    return lambda x: np.maximum(lower - x, x - upper).max(-1)


def ball(radius, *center):
    return lambda x: np.linalg.norm(x - np.array(center), axis=-1) - radius


def both(f, g, sign=1):
    return lambda x: np.maximum(f(x), sign * g(x))


def either(f, g):
    return lambda x: np.minimum(f(x), g(x))


square = box((-1, 1), (-1, 1))
ring = both(ball(2, 0, 0), ball(1, 0, 0), -1)
LENS = 2 * np.pi / 3 - np.sqrt(3) / 2
SHAPES = {  # the shape, its signed distance, its volume, and the area of every face
    "L": (
        SQUARE - sapm.Box(x=(0, 1), y=(-1, 0)),
        both(square, box((0, 1), (-1, 0)), -1),
        3,
        {"x-": 2, "x+": 1, "y-": 1, "y+": 2, "x- 2": 1, "y+ 2": 1},
    ),
    "L of two": (  # they touch along y = 0
        sapm.Box(x=(-1, 1), y=(0, 1)) | sapm.Box(x=(-1, 0), y=(-1, 0)),
        either(box((-1, 1), (0, 1)), box((-1, 0), (-1, 1e-9))),
        3,
        {"x-": 1, "x+": 1, "y-": 1, "y+": 2, "x- 2": 1, "x+ 2": 1, "y- 2": 1},
    ),
    "overlapping": (  # y- and y+ of both lie in one plane: what they share belongs to the first
        sapm.Box(x=(0, 2), y=(0, 1)) | sapm.Box(x=(1, 3), y=(0, 1)),
        box((0, 3), (0, 1)),
        3,
        {"x-": 1, "y-": 2, "y+": 2, "x+ 2": 1, "y- 2": 1, "y+ 2": 1},
    ),
    "annulus": (disc(2) - disc(), ring, 3 * np.pi, {"surface": 4 * np.pi, "surface 2": 2 * np.pi}),
    "lens": (
        disc(1, -0.5) & disc(1, 0.5),
        both(ball(1, -0.5, 0), ball(1, 0.5, 0)),
        LENS,
        {"surface": 2 * np.pi / 3, "surface 2": 2 * np.pi / 3},
    ),
    "two holes": (
        SQUARE - disc(0.3, 0.4, 0.4) - disc(0.4, -0.5, -0.5),
        both(both(square, ball(0.3, 0.4, 0.4), -1), ball(0.4, -0.5, -0.5), -1),
        4 - 0.25 * np.pi,
        {"x-": 2, "x+": 2, "y-": 2, "y+": 2, "surface": 0.6 * np.pi, "surface 2": 0.8 * np.pi},
    ),
    "a ring in time": (
        sapm.Box(t=(0, 3)) * (disc(2) - disc()),
        lambda x: np.maximum(box((0, 3))(x[..., :1]), ring(x[..., 1:])),
        9 * np.pi,
        {"t-": 3 * np.pi, "t+": 3 * np.pi, "surface": 12 * np.pi, "surface 2": 6 * np.pi},
    ),
    "intervals": (
        sapm.Box(x=(0, 3)) - sapm.Box(x=(1, 2)),
        both(box((0, 3)), box((1, 2)), -1),
        2,
        {"x-": 1, "x+": 1, "x- 2": 1, "x+ 2": 1},
    ),
    "a shell in ten dimensions": (
        sapm.Ball(10) - sapm.Ball(10, 0.8),
        both(ball(1, *np.zeros(10)), ball(0.8, *np.zeros(10)), -1),
        np.pi**5 / 120 * (1 - 0.8**10),
        {"surface": np.pi**5 / 12, "surface 2": np.pi**5 / 12 * 0.8**9},
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_points_fill_the_shape_evenly(name):
    shape, distance, volume, _ = SHAPES[name]
    x = shape.points(20000)
    assert (
        x.shape == (20000, len(shape.names))
        and (distance(x) < 0).all()
        and (shape.gap(x) > 0).all()
    )
    assert len(np.unique(x, axis=0)) == len(x) and shape.volume == pytest.approx(volume, rel=0.01)
    middle, half = shape.frame
    trial = np.random.default_rng(0).uniform(
        middle - 1.2 * half, middle + 1.2 * half, (200000, len(middle))
    )
    assert np.array_equal(shape.gap(trial) > 0, distance(trial) < 0) and np.array_equal(
        shape.sides, 2 * half
    )
    if len(middle) <= 3:  # the share of points in a part of it is that of its volume
        inside = trial[distance(trial) < 0]

        def part(x):
            return np.mean((x < middle + 0.3 * half).all(1))

        assert part(x) == pytest.approx(part(inside), abs=0.01)


def test_points_are_pieces_of_one_sequence():
    for shape in (SHAPES["L"][0], SHAPES["a ring in time"][0]):
        fresh = domain_from(shape.describe())
        later = fresh.points(500, 20000)
        assert np.array_equal(np.concatenate([fresh.points(20000, 0), later]), shape.points(20500))
        face = shape.faces[-1]
        assert np.array_equal(
            np.concatenate([fresh.face_points(face, 40, 1), fresh.face_points(face, 60, 41)]),
            shape.face_points(face, 100),
        )
    train = sapm.Function(shape, lambda p: p.x).samples(30, None, 20)
    assert np.array_equal(
        np.concatenate([train.terms[0].x.value, train.test["x"]]), shape.points(50)
    )


@pytest.mark.parametrize("name", SHAPES)
def test_faces_are_the_boundary(name):
    """Their areas, and normals that equal the gradient of the signed distance."""
    shape, distance, _, areas = SHAPES[name]
    assert shape.faces == tuple(areas)
    for face, area in areas.items():
        assert shape.area(face) == pytest.approx(area, rel=0.01)
        x = shape.face_points(face, 200)
        normal = shape.normal(face, x)
        steps = 1e-6 * np.eye(x.shape[1])
        gradient = np.stack([(distance(x + h) - distance(x - h)) / 2e-6 for h in steps], axis=1)
        assert np.abs(distance(x)).max() < 1e-8 and np.abs(shape.gap(x)).max() < 1e-12
        assert np.allclose(normal, gradient, atol=1e-5) and np.allclose(
            np.linalg.norm(normal, axis=1), 1
        )
        assert (shape.gap(x - 1e-6 * normal) > 0).all() and (shape.gap(x + 1e-6 * normal) < 0).all()
        assert np.array_equal(
            [shape.on_face(other, x).all() for other in areas], [other == face for other in areas]
        )
        assert (
            not shape.on_face(face, shape.points(100)).any()
            and not shape.on_face(face, x + 1e-6 * normal).any()
        )
        moved = x + 1e-9 * np.random.default_rng(0).normal(size=x.shape)
        assert np.abs(shape.gap(shape.snap(moved))).max() < 1e-12


def test_where_faces_end_and_where_none_is_left():
    L = SHAPES["L"][0]
    two = SHAPES["L of two"][0]
    corners = np.array([[-1.0, -1], [1, 1], [0, 0], [0, -1], [1, 0]])
    on = {face: L.on_face(face, corners).tolist() for face in L.faces}
    assert on["x-"] == [True, False, False, False, False] and on["y+"] == [
        False,
        True,
        False,
        False,
        False,
    ]
    assert on["x- 2"] == [False, False, True, True, False] and on["y+ 2"] == [
        False,
        False,
        True,
        False,
        True,
    ]
    assert np.allclose(L.gap(corners), 0) and np.allclose(two.gap(corners), 0)
    assert (
        L.gap(np.array([[1, -0.5], [0.5, -1], [1, -1]])) < 0
    ).all()  # on faces of both boxes, and of neither now
    seam = np.array([[-0.5, 0.0], [-0.1, 0.0]])
    assert (two.gap(seam) > 0).all() and not two.on_face("y-", seam).any()


def test_names_of_faces():
    holes = SQUARE - disc(0.2) - disc(0.1, 0.5) - sapm.Box(x=(-0.9, -0.5), y=(-0.9, -0.5))
    assert holes.faces == (
        "x-",
        "x+",
        "y-",
        "y+",
        "surface",
        "surface 2",
        "x- 2",
        "x+ 2",
        "y- 2",
        "y+ 2",
    )
    assert (holes - disc(0.1, -0.5, 0.5)).faces == (*holes.faces, "surface 3")
    filled = disc(0.5) | holes  # the first hole is gone; of the second, half
    assert filled.faces == ("surface", *holes.faces[:4], "surface 3", *holes.faces[6:])
    assert filled.area("surface") == pytest.approx(
        2 * np.arcsin(0.1), rel=0.02
    )  # a chord of 0.1 from the middle of the arc
    assert (sapm.Ball(2) * sapm.Ball(1, names=("z",))).faces == ("surface", "surface 2")
    assert sapm.Box(t=(0, 1)) * sapm.Box(x=(0, 2)) == sapm.Box(t=(0, 1), x=(0, 2))


def test_descriptions():
    for shape, *_ in SHAPES.values():
        back = domain_from(json.loads(json.dumps(shape.describe())))
        assert (
            back == shape
            and hash(back) == hash(shape)
            and np.array_equal(back.points(9), shape.points(9))
        )
        assert np.array_equal(pickle.loads(pickle.dumps(shape)).points(9), shape.points(9))
    old = {"kind": "ball", "dimension": 2, "radius": 1.0, "center": [0.0, 0.0]}
    assert (
        sapm.Ball(2).describe() == old
        and domain_from(old) == sapm.Ball(2)
        and domain_from(old).names == ("x1", "x2")
    )
    assert domain_from(disc().describe()).names == XY and disc() != sapm.Ball(2)


def test_measures_of_balls():
    assert sapm.Ball(1).area("surface") == pytest.approx(2) and sapm.Ball(
        1, 3
    ).volume == pytest.approx(6)
    assert sapm.Ball(3, 2).area("surface") == pytest.approx(16 * np.pi) and sapm.Ball(
        3, 2
    ).volume == pytest.approx(32 / 3 * np.pi)
    assert sapm.Ball(2000).area("surface") > 0
    box = SQUARE
    assert box.volume == 4 and box.area("x-") == 2


REFUSED = {
    "names that differ": (
        lambda: SQUARE - sapm.Ball(2),
        "difference of shapes with coordinates x, y and x1, x2 is not defined",
    ),
    "order": (
        lambda: SQUARE | sapm.Box(y=(0, 1), x=(0, 1)),
        "x, y and y, x is not defined; give both the same names",
    ),
    "nothing left": (lambda: disc() - SQUARE, "the difference is empty or too thin"),
    "nothing shared": (
        lambda: disc() & disc(1, 5),
        "the intersection is empty or too thin: it contains none of 16384 points",
    ),
    "a name twice": (
        lambda: sapm.Box(x=(0, 1)) * disc(),
        "both have x is not defined; give their coordinates different names",
    ),
    "two boxes": (lambda: sapm.Box(x=(0, 1)) * SQUARE, "both have x is not defined"),
    "too few names": (
        lambda: sapm.Ball(3, names=XY),
        r"names \('x', 'y'\); wanted a tuple of 3 different words",
    ),
    "names alike": (lambda: sapm.Ball(2, names=("x", "x")), "wanted a tuple of 2 different words"),
    "letters": (
        lambda: sapm.Ball(2, names="xy"),
        "names 'xy'; wanted a tuple of 2 different words",
    ),
    "a taken name": (lambda: sapm.Ball(1, names=("d",)), "'d' cannot name a coordinate"),
    "a hidden face": (
        lambda: sapm.PDE(
            SHAPES["L"][0],
            lambda p, u: u.xx + u.yy,
            [sapm.Dirichlet(lambda p: 0.0, faces=["x+ 2"])],
        ),
        r"'x\+ 2' is not a face; this domain has x-, x\+, y-, y\+, x- 2, y\+ 2",
    ),
    "points of a hidden face": (
        lambda: SHAPES["L"][0].face_points("x+ 2", 3),
        r"'x\+ 2' is not a face",
    ),
    "a ball has no start": (
        lambda: sapm.PDE(
            sapm.Ball(2, names=("t", "x")), lambda p, u: u.t, [sapm.Initial(lambda p: 0.0)]
        ),
        "Initial: got a domain with the faces surface, expected one on which t begins",
    ),
    "points in a hole": (
        lambda: sapm.Function(SHAPES["annulus"][0], lambda p: p.x).samples(
            np.array([[1.5, 0], [0.5, 0]])
        ),
        r"points has a point outside the domain: \(x=0.5, y=0\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    make, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize("sign", ["|", "&", "-", "*"])
def test_only_domains_combine(sign):
    with pytest.raises(TypeError, match="that is not a domain; use a sapm"):
        eval(f"box {sign} 3", {"box": SQUARE})


# ---------------------------------------------------------------- problems on them


def test_characteristics_end_at_holes():
    """Behind a hole u comes from the hole, however long the steps; where parts only touch, it comes
    from afar.
    """
    hole = SQUARE - disc(0.2)
    wave = lambda p: jnp.sin(p.y - 0.5 * p.x)
    x = np.concatenate([hole.points(20, 1), [[0.5, 0.25], [0.9, 0.45], [0.8, 0.42]]])
    problem = sapm.PDE(hole, lambda p, u: u.x + 0.5 * u.y, [sapm.Inflow(wave)])
    assert problem.ill_posed == "" and np.allclose(
        solve_by_characteristics(problem, x), np.sin(x[:, 1] - 0.5 * x[:, 0]), atol=1e-10
    )
    with pytest.warns(UserWarning, match="comes from the face 'surface' at"):
        problem = sapm.PDE(hole, problem.residual, [sapm.Dirichlet(wave, faces=["x-", "y-"])])
    shaded = (np.abs(x[:, 1] - 0.5 * x[:, 0]) < 0.2 * np.sqrt(1.25)) & (x[:, 0] + 0.5 * x[:, 1] > 0)
    assert 3 <= shaded.sum() < len(x) and np.array_equal(
        np.isnan(solve_by_characteristics(problem, x)), shaded
    )
    two = sapm.Box(t=(0, 1)) * (sapm.Box(x=(0, 1)) | sapm.Box(x=(1, 2)))
    data = [sapm.Initial(lambda p: jnp.sin(p.x)), sapm.Inflow(lambda p: jnp.sin(p.x - p.t))]
    problem = sapm.PDE(two, lambda p, u: u.t + u.x, data)
    x = two.points(20)
    assert two.faces == ("t-", "t+", "x-", "x+ 2") and np.allclose(
        solve_by_characteristics(problem, x), np.sin(x[:, 1] - x[:, 0]), atol=1e-10
    )


def test_time_begins_on_every_face_that_faces_back():
    later = sapm.Box(t=(0, 2), x=(0, 1)) | sapm.Box(t=(1, 2), x=(1, 2))
    assert sapm.Initial(lambda p: 0.0).faces_in(later) == ("t-", "t- 2")
    assert sapm.Dirichlet(lambda p: 0.0).faces_in(later) == ("x-", "x+", "x+ 2")
    pause = sapm.Box(t=(0, 3), x=(0, 2)) - sapm.Box(t=(1, 2), x=(0, 1))
    assert sapm.Initial(lambda p: 0.0).faces_in(pause) == ("t-", "t+ 2")
    heat = sapm.PDE(
        HEAT * disc(),
        lambda p, u: u.t - u.xx - u.yy,
        [sapm.Initial(lambda p: p.x), sapm.Neumann(lambda p: 0.0)],
    )
    start, wall = (heat.boundary(condition, 50) for condition in heat.conditions)
    assert (start[:, 0] == 0).all() and (np.linalg.norm(start[:, 1:], axis=1) < 1).all()
    assert np.allclose(np.linalg.norm(wall[:, 1:], axis=1), 1) and np.ptp(wall[:, 0]) > 0.4


def poisson():
    """On an L."""

    def exact(p):
        return jnp.sin(2 * p.x) * jnp.exp(p.y)

    return sapm.PDE(
        SHAPES["L"][0], lambda p, u: u.xx + u.yy + 3 * exact(p), [sapm.Dirichlet(exact)], exact
    )


def heat():
    """On a disc, a wave that fades."""

    def exact(p):
        return jnp.exp(-p.t) * jnp.sin(0.6 * p.x + 0.8 * p.y)

    return sapm.PDE(
        HEAT * disc(),
        lambda p, u: u.t - u.xx - u.yy,
        [sapm.Initial(exact), sapm.Dirichlet(exact)],
        exact,
    )


SMALL = {"seeds": 1, "points": 150, "boundary_points": 80, "test_points": 100, "progress": False}


@pytest.mark.filterwarnings("ignore:the domain has a corner that points inwards")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "steps", "panels", "shown"),
    [(heat, 15, 3, np.pi / 4), (poisson, 25, 1, 3 / 4)],
)
def test_solved_kept_and_drawn(make, steps, panels, shown, tmp_path):
    """To an error of 1e-4; figures show the domain alone."""
    result = sapm.solve(make(), 3, 12, max_iter=steps, **SMALL)
    assert result.table[0]["solution_error"] < 1e-4
    result.save(tmp_path / "a.sapm")
    loaded = sapm.load(tmp_path / "a.sapm", problem=make())
    assert (
        loaded.table == result.table and domain_from(loaded.samples.domain) == result.problem.domain
    )
    for kind in ("solution", "error"):
        maps = [
            ax.collections[0].get_array() for ax in loaded.plot(kind).axes if ax.get_xlabel() == "x"
        ]
        assert len(maps) == panels and all(
            np.isfinite(m.filled(np.nan)).mean() == pytest.approx(shown, abs=0.02) for m in maps
        )


@pytest.mark.slow
def test_annulus():
    """log r, given outside; inside its slope against the normal."""

    def exact(p):
        return jnp.log(p.x**2 + p.y**2) / 2

    data = [
        sapm.Dirichlet(exact, faces=["surface"]),
        sapm.Neumann(lambda p: -1.0, faces=["surface 2"]),
    ]
    problem = sapm.PDE(SHAPES["annulus"][0], lambda p, u: u.xx + u.yy, data, exact)
    result = sapm.solve(
        problem, 3, 12, max_iter=100, points=600, boundary_points=300, seeds=1, progress=False
    )
    assert result.table[0]["solution_error"] < 2e-3
