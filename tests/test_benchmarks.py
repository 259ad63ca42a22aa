"""The benchmarks' records, the page made from them, and what counts as a regression. Nothing is timed here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks/ is not installed

from benchmarks import __main__ as runner  # noqa: E402
from benchmarks import harness, page  # noqa: E402
from benchmarks.harness import Row  # noqa: E402

RECORDS = sorted(page.RESULTS.glob("*.json"))
UNITS = {"ms", "s", "MiB", "ratio", "score", "difference"}


def record(*rows: Row, **machine: str) -> dict:
    where = {"cpu": "one", "gpu": "none", "python": "3", "torch": "2"} | machine
    return {"machine": where, "rows": [harness._short(row) for row in rows]}


def test_page_is_in_step_with_the_records():
    assert page.PAGE.read_text(encoding="utf-8") == page.markdown(), "run `python -m benchmarks --page`"
    text = page.README.read_text(encoding="utf-8")
    assert text == page.readme(text), "run `python -m benchmarks --page`"


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_record_is_whole(path):
    content = json.loads(path.read_text())
    assert {"cpu", "gpu", "torch", "python"} <= set(content["machine"])
    assert path.stem.endswith("_gpu") == (content["machine"]["gpu"] != "none")
    assert path.stem in runner.names() or path.stem.removesuffix("_gpu") in runner.names()
    assert content["rows"], "a benchmark without figures is not worth a file"
    keys = [runner._key(row) for row in content["rows"]]
    assert len(keys) == len(set(keys)), "two figures of the same name"
    assert {row["unit"] for row in content["rows"]} <= UNITS


def test_every_benchmark_has_a_record():
    stems = {path.stem for path in RECORDS}
    missing = {name for name in runner.names() if not {name, f"{name}_gpu"} & stems}
    assert not missing


def test_record_keeps_what_matters(tmp_path, capsys):
    rows = [Row("a", 1 / 3, "ms"), Row("a", 5.0, "ms", "f+b", by="peer", note="elsewhere")]
    harness.record(tmp_path / "x.json", rows)
    content = json.loads((tmp_path / "x.json").read_text())
    assert content["rows"][0] == {"name": "a", "value": 0.33333, "unit": "ms"}
    assert content["rows"][1]["note"] == "elsewhere"
    harness.record(Path("-"), rows)
    assert json.loads(capsys.readouterr().out) == content


def test_tables():
    rows = [
        Row("8 x 8", 1.234, "ms", "f+b"),
        Row("8 x 8", 24.0, "ms", "f+b", by="peer", note="measured last year"),
        Row("16 x 16", 2345.6, "ms", "f+b"),
        Row("8 x 8", 19.4, "ratio", "times faster"),
        Row("compiling", 3.0, "s"),
    ]
    text = page._matrix(record(*rows[:4])["rows"], ["measured last year"])
    assert text.splitlines()[0] == "| workload | f+b (ms) | peer: f+b (ms) | times faster (×) |"
    assert text.splitlines()[2] == "| 8 x 8 | 1.23 | 24 [1] | 19.4 |"
    assert text.splitlines()[3] == "| 16 x 16 | 2,350 |  |  |"


def test_page_of_other_results(tmp_path):
    (tmp_path / "sorting_gpu.json").write_text(json.dumps(record(Row("8 x 8", 1.0, "ms", "f+b"), gpu="A GPU")))
    (tmp_path / "zebra.json").write_text(json.dumps(record(Row("stripes", 3.0, "s"), cpu="A CPU")))
    text = page.markdown(tmp_path)
    assert text.index("## Soft sorting") < text.index("### On A GPU") < text.index("## zebra") < text.index("On A CPU")
    assert "| stripes | 3 s |" in text


def test_readme_shows_what_was_recorded(tmp_path):
    rows = (
        Row("1000 x 32", 0.31, "ms", "odd-even, f+b"),
        Row("1000 x 32", 122.0, "ms", "odd-even, f+b", by="diffsort", note="last year"),
        Row("1000 x 32", 393.0, "ratio", "odd-even, times faster"),
    )
    (tmp_path / "sorting_gpu.json").write_text(json.dumps(record(*rows, gpu="A GPU")))
    text = page.readme("before\n<!-- figures -->\nold\n<!-- /figures -->\nafter\n", tmp_path)
    assert text.startswith("before\n<!-- figures -->\n| forward")
    assert text.endswith("<!-- /figures -->\nafter\n")
    assert "| soft sort, odd-even, 1000 x 32 | A GPU | 0.31 | diffsort 122* |" in text
    assert "old" not in text
    assert page.readme(text, tmp_path) == text


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (Row("a", 1.0, "ms"), Row("a", 1.4, "ms"), 0),
        (Row("a", 1.0, "ms"), Row("a", 1.6, "ms"), 1),
        (Row("a", 0.01, "ms"), Row("a", 0.05, "ms"), 0),  # below what a clock can tell
        (Row("a", 100.0, "ratio"), Row("a", 60.0, "ratio"), 1),
        (Row("a", 100.0, "ratio"), Row("a", 600.0, "ratio"), 0),
        (Row("a", 0.9, "score"), Row("a", 0.5, "score"), 1),
        (Row("a", 1.0, "ms", by="peer"), Row("a", 9.0, "ms", by="peer"), 0),  # the peer's loss
        (Row("a", 1.0, "ms", note="old"), Row("a", 9.0, "ms", note="old"), 0),
        (Row("a", 1.0, "MiB", "memory"), Row("a", 90.0, "MiB", "memory"), 1),
        (Row("a", 1.0, "ms", "f"), Row("a", 9.0, "ms", "f+b"), 0),  # another figure
    ],
)
def test_regressions(old, new, found):
    assert len(runner.regressions(record(old), record(new))) == found


def test_times_of_other_machines_are_not_compared():
    times, ratios = (Row("a", 1.0, "ms"), Row("a", 9.0, "ms")), (Row("b", 9.0, "ratio"), Row("b", 1.0, "ratio"))
    old, new = record(times[0], ratios[0], cpu="one"), record(times[1], ratios[1], cpu="two")
    assert runner.regressions(old, new) == ["b: 9 -> 1 ratio"]
    assert runner.regressions(record(times[0], torch="2.12"), record(times[1], torch="2.13")) == ["a: 1 -> 9 ms"]


def test_unknown_names_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "nonsense"])
    with pytest.raises(SystemExit):
        runner.main()
    assert "no benchmark named nonsense; there are" in capsys.readouterr().err


def test_results_are_kept_by_device():
    assert runner.results_name("sorting", cuda=True) == "sorting_gpu"
    assert runner.results_name("sorting", cuda=False) == "sorting"
    assert runner.results_name("render_gpu", cuda=True) == "render_gpu"
    assert runner.results_name("render", cuda=True) == "render"  # its sibling is for the GPU


def test_whole_calls_of_the_renderer_run_anywhere(tmp_path, capsys):
    """Parity, lit calls, softness and a folder of meshes, tiny; no figure is judged."""
    from benchmarks import render_gpu

    from algonet.render import icosphere

    (tmp_path / "meshes").mkdir()
    icosphere(1).save(tmp_path / "meshes" / "ball.ply")
    file, picture = tmp_path / "rows.json", tmp_path / "softness.png"
    render_gpu.main(["--device", "cpu", "--quick", "--meshes", str(tmp_path / "meshes"), "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    assert {row["column"] for row in rows} >= {"lit, f+b", "attributes, f+b", "lit / attributes", "every pixel sampled"}
    assert any(row["name"] == "ball, 80 faces x 32^2" for row in rows)
    assert all(row["value"] > 0 for row in rows)
    render_gpu.render_calls.main(["--recorded", str(file), "--plot", str(picture)])
    assert picture.stat().st_size > 1000
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="holds no mesh files"):
        list(render_gpu.render_calls.mesh_rows(tmp_path / "empty", "cpu", True, 0.01))
