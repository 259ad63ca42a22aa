"""Shape from silhouettes and normals: what remeshing adds, and what happens on finer and finer templates.

Pictures and measures are those of `benchmarks/fitting.py` (its docstring says them): 32 views of 256 x 256 pixels,
silhouettes and normals; overlap and normals in unseen views, Chamfer distance over its floor, the share of faces that
are inverted or cut through others. Rows per mesh: `fit_mesh` with its default settings, remeshed on the way from a ball of
1,280 faces (since 0.3 it begins with the visual hull); the same steps on balls of 5,120 and 20,480 faces that keep their
faces; and, on the latter, no preconditioning (stiffness 0) with Laplacian and flattening penalties instead, as
differentiable renderers have long been used.

Nicolet et al. ("Large steps in inverse rendering of geometry", 2021) and Palfinger ("Continuous remeshing for inverse
rendering", 2022) show their results as pictures and curves of their own scenes; no figure of theirs is copied here.

Run: python -m experiments.shape --data FOLDER [--meshes spot cow] [--steps 500]
"""

from __future__ import annotations

from benchmarks import fitting
from benchmarks.fitting import meshes, scenes, shape_rows

from algonet.render import LargeSteps, Mesh, MeshWeights, icosphere
from experiments.harness import Row, arguments, record, save


def methods(quick: bool) -> dict[str, dict]:
    """What each row gives to `fit_mesh`."""
    fine = (1, 2) if quick else (4, 5)
    penalties = MeshWeights(laplacian=20.0, flatten=0.01)
    plain = {"optimizer": LargeSteps(stiffness=0.0, learning_rate=0.03), "weights": penalties}
    kept = {f"large steps, {20 * 4**level:,} faces kept": {"template": ball(level)} for level in fine}
    return {"large steps, remeshed": {}, **kept, "penalties, the finer ball": {"template": ball(fine[1]), **plain}}


def ball(level: int) -> Mesh:
    return icosphere(level, 0.55).to(fitting.DEVICE)


def main() -> None:
    options = arguments(__doc__, data="a folder of mesh files", steps=500, meshes=[""])
    size, views = (24, (4, 2)) if options.quick else (256, (32, 16))
    options.steps = 4 if options.quick else options.steps
    shapes, names = meshes(None if options.quick else options.data), [name for name in options.meshes if name]
    found = {name: mesh for name, mesh in shapes.items() if not names or name in names}
    rows: list[Row] = []
    for name, mesh in list(found.items())[: 1 if options.quick else None]:
        # Photographed one by one: a run that is cut has whole rows of the first ones
        (scene,) = scenes({name: mesh}, views, size)
        for method, given in methods(options.quick).items():
            for row in shape_rows(scene, "normals", steps=options.steps, **given):
                rows.append(Row(f"{scene.name}: {method}", row.value, row.unit, row.column))
            save(options.json, rows, options)
    record(options.json, rows, options)


if __name__ == "__main__":
    main()
