"""Parallel steps of a recipe: the same outcome as sequential steps, failures, interruptions and kills."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stepping
from retrievalkit.cli import main as rkit
from retrievalkit.recipes import schedule
from retrievalkit.recipes.job import StepError
from retrievalkit.recipes.recipe import load_recipe
from retrievalkit.recipes.run import run

RECIPE = """\
name: sums
values: {more: x}
steps:
  - {name: base, command: write, with: {text: base}, output: base.json}
  - {name: left, command: write, with: {text: "${more}", from: ["${steps.base}"]}, output: left.json}
  - {name: right, command: write, with: {text: right, from: ["${steps.base}"]}, output: right.json}
  - {name: sum, command: write, with: {text: sum, from: ["${steps.left}", "${steps.right}"]}, output: sum.json}
table: [sum]
variants:
  short: {}
  long: {title: Long, values: {more: xxxx}}
baseline: short
"""

APART = "name: apart\nsteps:\n" + "".join(
    f"  - {{name: {name}, command: write, with: {{text: {name}, {options}}}, output: {name}.json}}\n"
    for name, options in {
        "a": "until: go",
        "b": "until: go",
        "c": "from: ['${steps.a}']",
        "d": "from: ['${steps.b}']",
    }.items()
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(rkit.commands, "write", stepping.write)
    monkeypatch.setattr(schedule, "PROGRAM", "stepping")
    folders = [str(Path(stepping.__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))
    return tmp_path


def start(text, output="out", jobs=2, **options):
    Path("recipe.yaml").write_text(text)
    return run(load_recipe("recipe.yaml"), output, cli=rkit, parallel=jobs, **options)


def journal():
    return [line.split()[:2] for line in Path(stepping.JOURNAL).read_text().splitlines()]


def without_seconds(path):
    def drop(value):
        if isinstance(value, dict):
            return {key: drop(inner) for key, inner in value.items() if "seconds" not in key}
        return [drop(inner) for inner in value] if isinstance(value, list) else value

    return drop(json.loads(path.read_text().replace("one/", "out/")))


def test_the_outcome_equals_a_sequential_run(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    sequential = start(RECIPE, "one", jobs=None)
    Path(stepping.JOURNAL).unlink()
    parallel = start(RECIPE)
    assert [step.name for step in parallel.steps] == [step.name for step in sequential.steps]
    assert [step.figures for step in parallel.steps] == [step.figures for step in sequential.steps]
    for name in ("results.json", "run.json"):
        assert without_seconds(Path("out", name)) == without_seconds(Path("one", name))
    assert (
        Path("out/results.md").read_text().split("seconds")[0] == Path("one/results.md").read_text().split("seconds")[0]
    )
    assert list(json.loads(Path("out/run.json").read_text())["steps"]) == [step.name for step in parallel.steps]
    lines = journal()
    for text, used in (("x", "base"), ("xxxx", "base"), ("right", "base"), ("sum", "right")):
        assert lines.index(["end", used]) < lines.index(["start", text])
    assert all(step.skipped for step in start(RECIPE).steps)
    assert journal() == lines


def test_steps_share_the_processors_and_the_terminal(monkeypatch, capsys):
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    Path("go.txt").touch()
    start(APART, jobs=2)
    threads = {line.split()[2] for line in Path(stepping.JOURNAL).read_text().splitlines() if line.startswith("start")}
    assert threads == {"3"}
    shown = capsys.readouterr().err.splitlines()
    assert len([line for line in shown if line.startswith("[1/4] done: ") and line.endswith("wrote a")]) == 1
    assert Path("out/logs/a.log").read_text().splitlines()[1:] == ["wrote a"]


def test_steps_that_depend_on_a_failed_step_do_not_run(capsys):
    Path("go.txt").touch()
    broken = APART.replace("text: a, until: go", "text: a, fail: true")
    with pytest.raises(
        StepError, match=r"step 'a' \(rkit write\) failed: the text 'a' is broken\..*depend on these: c\."
    ) as caught:
        start(broken)
    assert caught.value.exit_code == 2
    assert Path("out/d.json").exists()
    assert not Path("out/c.json").exists()
    assert "Independent steps continue" in capsys.readouterr().err
    Path(stepping.JOURNAL).unlink()
    start(APART)
    assert [text for what, text in journal() if what != "end"] == ["a", "c"]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_an_interrupted_run_ends_its_steps_and_can_continue(number, place):
    Path("recipe.yaml").write_text(APART)
    words = [sys.executable, stepping.__file__, "run", "recipe.yaml", "--output", "out", "--jobs", "2"]
    # Tests may run in the background, where Ctrl-C is ignored.
    process = subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    wait_for(lambda: Path(stepping.JOURNAL).exists() and len(journal()) == 2)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    wait_for(lambda: len(journal()) == 4)
    assert sorted(journal()[2:]) == [["end", "a"], ["end", "b"]]
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert "running steps: 'a', 'b'" in err
        assert "Run the same command again to continue" in err
    Path("go.txt").touch()
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    assert sorted(line for line in journal() if line[0] == "resume") == [["resume", "a"], ["resume", "b"]]
    assert Path("out/d.json").exists()


@pytest.mark.slow
def test_a_step_that_is_killed_is_a_failure():
    text = APART.replace("text: a, until: go", "text: a, seconds: 60")
    Path("go.txt").touch()
    Path("recipe.yaml").write_text(text)
    words = [sys.executable, stepping.__file__, "run", "recipe.yaml", "--output", "out", "--jobs", "2"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: Path("out/d.json").exists())
    wait_for(lambda: len(children(process)) == 1)
    (step,) = children(process)
    os.kill(int(step), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "failed: its process was killed by signal 9. Is there enough memory?" in err


def children(process):
    return subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False).stdout.split()


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
