"""The command: doctor, demo, help, exit codes and one-line errors."""

from __future__ import annotations

import re
import subprocess
import sys

from algonet import cli
from algonet.apps import gallery
from algonet.apps.gallery import Figure, Section


def _algonet(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "algonet", *arguments], capture_output=True, text=True, timeout=300)
    assert not check or done.returncode == 0, done.stderr
    return done


def test_doctor_names_versions_devices_and_operations():
    text = _algonet("doctor").stdout
    for word in ("torch", "numba", "devices", "cpu", "operations on cpu"):
        assert word in text


def test_help_has_examples():
    assert "demo" in _algonet("--help").stdout
    assert "--quick" in _algonet("demo", "--help").stdout
    assert "Example" in _algonet("demo", "--help").stdout


def test_mounting_again_changes_nothing():
    functions = [command.callback for command in cli.mount().registered_commands]
    assert [command.callback for command in cli.mount().registered_commands] == functions
    assert len(set(functions)) == len(functions)


def test_unknown_command_exits_2():
    assert _algonet("dmo", check=False).returncode == 2


def test_errors_are_one_line_without_a_traceback(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    code = (
        "import sys; from algonet import cli\n"
        "def fail(quick, progress): raise ValueError('soft_sort:\\n  went wrong')\n"
        "import algonet.apps.gallery as gallery; gallery.build = fail\n"
        "sys.argv = ['algonet', *{options}, 'demo']; cli.main()"
    )
    plain = subprocess.run([sys.executable, "-c", code.format(options=[])], capture_output=True, text=True)
    assert plain.returncode == 1
    assert plain.stderr.strip() == "algonet: soft_sort: went wrong"
    debug = subprocess.run([sys.executable, "-c", code.format(options=["--debug"])], capture_output=True, text=True)
    assert "Traceback" in debug.stderr


def test_page_is_self_contained_and_escaped(tmp_path):
    png = b"\x89PNG fake"
    sections = [
        Section("a", "A & B", "is x > 0?", (Figure("one", png, "<caption>", "x < 1"), Figure("two", b"GIF89a", "")))
    ]
    text = gallery.page(sections)
    assert "A &amp; B" in text
    assert "&lt;caption&gt;" in text
    assert "x &lt; 1" in text
    assert text.count("data:image/png;base64") == 1
    assert text.count("data:image/gif;base64") == 1
    assert "{{" not in text
    assert not re.search(r'(src|href)="(https?:)?//', text), "the page must not load anything from elsewhere"
