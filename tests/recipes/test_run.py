"""Running recipes: command lines, skipped steps, failures and interruptions."""

import json
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
from filelock import FileLock

from retrievalkit import storage
from retrievalkit.cli import main
from retrievalkit.cli.derived import DerivedCommand
from retrievalkit.contracts.declarations import Argument, Flag, Rest, WritingOptions, command
from retrievalkit.errors import ArtifactError, DataError, InputError
from retrievalkit.recipes.job import StepError
from retrievalkit.recipes.log import StepLog
from retrievalkit.recipes.outcome import Outcome
from retrievalkit.recipes.recipe import Recipe, load_recipe
from retrievalkit.recipes.run import plan, preview, run
from retrievalkit.recipes.settings import parse_set
from retrievalkit.recipes.state import STATE
from retrievalkit.recipes.step import Step
from retrievalkit.registry import trust

COUNT = """\
name: count
description: Builds, trains and prints.
values: {source: data.txt, layers: [4, 6], epochs: 1}
steps:
  - name: index
    command: build
    with: {source: "${source}", name: [one, two], fast: true}
    output: index
  - name: train
    command: train
    with: {from: "${steps.index}", epochs: "${epochs}", set: {pooler.layers: "${layers}"}, shared-tower: false}
    output: model
  - name: figures
    command: evaluate
    with: {run: "${steps.train}", json: true}
    output: figures.json
"""
FIGURES = 'evaluate\n    with: {run: "${steps.train}", json: true}\n    output: figures.json'


@pytest.fixture
def calls():
    return []


@dataclass(frozen=True)
class BuildOptions(WritingOptions):
    """Options of `build`."""

    source: Annotated[str, Argument()]
    _: KW_ONLY
    name: Sequence[str] = ()
    fast: bool = False
    weight: float | None = None
    fail: bool = False


@dataclass(frozen=True)
class TrainOptions(WritingOptions):
    """Options of `train`."""

    source: Annotated[str, Flag(("--from",))]
    _: KW_ONLY
    epochs: int | None = None
    shared_tower: Annotated[bool, Flag(("--shared-tower/--separate-towers",))] = True
    set: Annotated[Mapping[str, Any], Rest()] = field(default_factory=dict)
    resume: bool = False


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of `evaluate`."""

    run: Annotated[str, Argument()]
    as_json: Annotated[bool, Flag(("--json",))] = False


@dataclass(frozen=True)
class ConvertOptions:
    """Options of `convert`."""

    source: Annotated[str, Argument()]
    output: Annotated[str, Argument()]


@pytest.fixture
def cli(calls):
    """A command line whose commands write a folder, resume, print, or write a file."""
    main = click.Group("rkit")

    def write(options, text):
        with storage.write_folder(options.output, overwrite=options.overwrite) as staging:
            (staging / "content").write_text(text)
            storage.write_manifest(staging, "index", command="build", options={})

    def build(options) -> None:
        assert trust.in_recipe()
        calls.append(("build", options.source, tuple(options.name), options.fast, options.overwrite))
        if options.fail:
            click.echo("\n".join(f"line {number}" for number in range(100)))
            msg = "the text is broken."
            raise InputError(msg)
        write(options, Path(options.source).read_text())

    def train(options) -> None:
        calls.append(("train", options.epochs, options.shared_tower, options.set, options.resume, options.overwrite))
        if options.epochs == 13 and not options.resume:
            raise KeyboardInterrupt
        write(options, (Path(options.source) / "content").read_text() + str(options.epochs // 10))

    def evaluate(options) -> None:
        calls.append(("evaluate", options.as_json))
        metrics = {"nDCG@10": len((Path(options.run) / "content").read_text()) / 10}
        click.echo(json.dumps({"metrics": metrics, "queries": {"nDCG@10": 3}}))

    def convert(options) -> None:
        Path(options.output).write_text(Path(options.source).read_text().upper())

    declarations = {build: BuildOptions, train: TrainOptions, evaluate: EvaluateOptions, convert: ConvertOptions}
    for program, options in declarations.items():
        main.add_command(DerivedCommand(command(program.__name__, options)(program)))
    return main


@pytest.fixture
def start(tmp_path, monkeypatch, cli):
    """Run the recipe `count`, or another text, with settings in a temporary folder."""
    monkeypatch.chdir(tmp_path)
    Path("data.txt").write_text("abc")

    def start(*settings, text=COUNT, output="out", **options):
        Path("recipe.yaml").write_text(text)
        recipe = load_recipe("recipe.yaml", parse_set(settings), options.pop("variants", None))
        return run(recipe, output, cli=cli, **options).steps

    return start


def test_steps_run_in_order_with_the_command_lines_of_a_shell(start, calls):
    results = start()
    assert [step.command_line for step in results] == [
        "rkit build data.txt --name one --name two --fast --output out/index",
        "rkit train --from out/index --epochs 1 --set pooler.layers=4,6 --separate-towers --output out/model",
        "rkit evaluate out/model --json > out/figures.json",
    ]
    assert calls == [
        ("build", "data.txt", ("one", "two"), True, False),
        ("train", 1, False, {"pooler": {"layers": "4,6"}}, False, False),
        ("evaluate", True),
    ]
    assert not any(step.skipped for step in results)
    assert results[2].figures == {"nDCG@10": 0.4}
    assert not trust.in_recipe()


def test_an_output_may_be_an_argument_of_the_command(start):
    text = "name: upper\nsteps:\n  - {name: upper, command: convert, with: {source: data.txt}, output: a/upper.txt}\n"
    Path("out/a").mkdir(parents=True)
    Path("out", STATE).write_text('{"recipe": "upper", "steps": {}}')
    (result,) = start(text=text)
    assert result.command_line == "rkit convert data.txt out/a/upper.txt"
    assert Path("out/a/upper.txt").read_text() == "ABC"


def test_a_plan_shows_what_a_run_does(start, calls, cli):
    def planned(overrides=None, **options):
        return preview(load_recipe("recipe.yaml", overrides), "out", cli=cli, **options)

    Path("recipe.yaml").write_text(COUNT)
    first = planned()
    assert calls == []
    assert not Path("out").exists()
    assert not any(step["kept"] for step in first.steps)
    assert [step["command_line"] for step in first.steps] == [step.command_line for step in start()]
    assert all(step["kept"] for step in planned().steps)
    assert not any(step["kept"] for step in planned(force=True).steps)
    changed = planned(overrides=parse_set(["epochs=20"]))
    assert [step["kept"] for step in changed.steps] == [True, False, False]
    assert changed.summary.splitlines() == [
        "[1/3] build → index (kept)",
        "      rkit build data.txt --name one --name two --fast --output out/index",
        "[2/3] train → model",
        "      rkit train --from out/index --epochs 20 --set pooler.layers=4,6 --separate-towers --output out/model",
        "[3/3] evaluate → figures.json",
        "      rkit evaluate out/model --json > out/figures.json",
        "2 of 3 steps would run; nothing was run.",
    ]
    Path("data.txt").write_text("other")
    assert not any(step["kept"] for step in planned().steps)


@pytest.mark.parametrize(
    ("change", "settings", "again"),
    [
        (lambda: None, ["epochs=20"], "train evaluate"),
        (lambda: None, ["epochs=2"], "train"),  # its content is the same
        (lambda: Path("data.txt").touch(), [], ""),
        (lambda: Path("data.txt").write_text("abcd"), [], "build train evaluate"),
        (lambda: Path("out/index/content").unlink(), [], "build"),
        (lambda: Path("out/index/content").write_text("ab"), [], "build"),
    ],
    ids=["option", "same result", "time alone", "input", "output gone", "output cut off"],
)
def test_steps_that_depend_on_a_change_run_again(start, calls, change, settings, again):
    start()
    calls.clear()
    change()
    start(*settings)
    assert [name for name, *_ in calls] == again.split()


def test_the_folder_may_be_moved_and_force_runs_every_step(start, calls):
    first = start()
    calls.clear()
    Path("out").rename("elsewhere")
    second = start(output="elsewhere")
    assert (calls, all(step.skipped for step in second)) == ([], True)
    assert [(step.seconds, step.figures) for step in second] == [(step.seconds, step.figures) for step in first]
    start(output="elsewhere", force=True)
    assert [name for name, *_ in calls] == ["build", "train", "evaluate"]


def test_a_failing_step_is_named_and_earlier_outputs_are_kept(start, calls, capsys):
    text = COUNT.replace("command: train", "command: build").replace("from:", "fail: true, source:")
    text = text.replace(', epochs: "${epochs}", set: {pooler.layers: "${layers}"}, shared-tower: false', "")
    with pytest.raises(StepError, match=r"step 'train' \(rkit build\) failed: the text is broken.") as caught:
        start(text=text)
    assert caught.value.exit_code == 2
    assert Path("out/index/content").exists()
    assert not Path("out/model").exists()
    shown = capsys.readouterr().err
    assert "[1/3] build → index" in shown
    assert "| line 99\n" in shown
    assert "line 50" not in shown
    assert "Full log: out/logs/train.log" in shown
    assert "Stopped in step 2 of 3, 'train'. Kept in 'out': the output of index." in shown
    calls.clear()
    start()
    assert [name for name, *_ in calls] == ["train", "evaluate"]


def test_an_interrupted_training_is_resumed(start, calls, capsys):
    with pytest.raises(KeyboardInterrupt) as interrupted:
        start("epochs=13")
    last = interrupted.value.__notes__[-1]
    assert "Interrupted in step 2 of 3, 'train'. Kept in 'out': the output of index, and the last saved state" in last
    state = json.loads(Path("out", STATE).read_text())["steps"]
    assert state["train"]["done"] is False
    calls.clear()
    capsys.readouterr()
    results = start("epochs=13")
    shown = capsys.readouterr().err
    assert "[1/3] Unchanged since an earlier run: index\n[2/3] train → model\n" in shown
    assert "Resumes; it was interrupted after" in shown
    assert calls[0] == ("train", 13, False, {"pooler": {"layers": "4,6"}}, True, False)
    assert results[1].seconds > state["train"]["seconds"]
    with pytest.raises(KeyboardInterrupt):
        start("epochs=13", "train.set.pooler.layers=2")
    calls.clear()
    start("epochs=5")
    assert calls[0][4] is False
    calls.clear()
    # The table contains the complete rows.
    interrupting = TABLE.replace("epochs: 20", "epochs: 13")
    with pytest.raises(KeyboardInterrupt):
        start(text=interrupting, output="table")
    assert [row["variant"] for row in json.loads(Path("table/results.json").read_text())["rows"]] == ["short"]
    calls.clear()
    start(text=interrupting, output="table")
    assert calls[0] == ("train", 13, False, {"pooler": {"layers": "4,6"}}, True, False)


def test_the_printed_output_of_a_failing_command_is_discarded(start, cli):
    def evaluate(options) -> None:
        click.echo("{")
        msg = "no."
        raise InputError(msg)

    cli.add_command(DerivedCommand(command("evaluate", EvaluateOptions)(evaluate)))
    with pytest.raises(StepError, match=r"step 'figures' .*: no\.") as caught:
        start()
    assert caught.value.exit_code == 2
    assert sorted(path.name for path in Path("out").iterdir()) == ["index", "logs", "model", STATE]


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("command: train", "command: trian", 9, "unknown command 'trian'; did you mean 'train'"),
        ('epochs: "', 'epohcs: "', 11, "has no option 'epohcs' in a recipe; did you mean 'epochs'"),
        ('epochs: "${epochs}"', "epochs: many", 11, "'epochs': .*epochs cannot be 'many'"),
        ("shared-tower: false", "shared-tower: 3", 11, "true or false"),
        ("set: {pooler.layers:", "set: 3, x: {y:", 11, "'set' is 3, but should be a mapping"),
        ("output: model", "output: model\n    with2: 3", 13, "did you mean 'with'"),
        ("from: ", "output: a, from: ", 11, "'output' belongs next to 'with'"),
        ('from: "${steps.index}", ', "", 9, "rkit train needs 'from'"),
        (FIGURES, "build\n    with: {source: x}", 13, "rkit build needs 'output'. Add it next to 'with'"),
        ("name: [one, two]", "weight: heavy", 7, "weight cannot be 'heavy'"),
        # Nothing is written outside the run's folder.
        ('run: "${steps.train}"', 'run: "-o/tmp/elsewhere"', 15, "would read as an option"),
        ("command: build", "command: plugins new", 5, "unknown command 'plugins new'"),
    ],
)
def test_a_wrong_step_is_reported_with_its_line_before_anything_runs(start, cli, calls, old, new, line, problem):
    cli.add_command(click.Group("plugins", commands={"new": cli.commands["build"]}))
    assert old in COUNT
    with pytest.raises(DataError, match=rf"^recipe.yaml:{line}: .*{problem}"):
        start(text=COUNT.replace(old, new, 1))
    assert calls == []
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "address", ["s3://stranger/x", "ftp://stranger/x", "s3://mine/x::ftp://stranger/x", "s3://mine2/x"]
)
def test_a_store_is_read_only_if_the_user_names_it(start, cli, calls, address):
    text = COUNT.replace("name: [one, two]", f"name: {address}")
    with pytest.raises(DataError, match="--set"):
        start("source=s3://mine", text=text)
    assert (calls, Path("out").exists()) == ([], False)
    Path("recipe.yaml").write_text(COUNT.replace('"${source}"', '"${source}/corpus.jsonl"'))
    planned = preview(load_recipe("recipe.yaml", parse_set(["source=s3://mine"])), "out", cli=cli).steps
    assert planned[0]["command_line"].startswith("rkit build s3://mine/corpus.jsonl ")


def test_the_folder_of_another_recipe_is_not_changed(start, calls):
    start("epochs=1")
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("all of it")
    before, done = Path("out", STATE).read_text(), len(calls)
    with pytest.raises(ArtifactError, match="belongs to the recipe 'count', not to 'recount'"):
        start(text=COUNT.replace("name: count", "name: recount"))
    with pytest.raises(ArtifactError, match=r"exists already, but contains no run of a recipe\. Choose another"):
        start(output="mine")
    with FileLock("out/.run.lock"), pytest.raises(ArtifactError, match="another process is writing to 'out'"):
        start("epochs=2")
    assert (Path("out", STATE).read_text(), len(calls)) == (before, done)
    assert [step.skipped for step in start("epochs=2")] == [True, False, True]
    Path("out", STATE).write_text("{")
    with pytest.raises(ArtifactError, match="is not valid JSON"):
        start()


TABLE = (
    COUNT
    + """\
table: [figures]
variants:
  short: {expected: {source: a paper, nDCG@10: 0.5}}
  long: {title: Long, values: {epochs: 20}, expected: {nDCG@10: 0.4}}
baseline: short
"""
)


def test_variants_share_steps_and_the_table_is_written_to_the_folder(start, calls, cli):
    results = start(text=TABLE)
    assert [step.name for step in results] == ["index", "short/train", "short/figures", "long/train", "long/figures"]
    assert [name for name, *_ in calls] == ["build", "train", "evaluate", "train", "evaluate"]
    assert "--from out/index --epochs 20" in results[3].command_line
    calls.clear()
    outcome = run(load_recipe("recipe.yaml"), "out", cli=cli)
    assert calls == []
    assert re.search(r"^short +0.4000 \(0.5000, -0.1000\)", outcome.summary, re.MULTILINE)
    assert re.search(r"^Long +0.4000 \(0.4000, \+0.0000\)", outcome.summary, re.MULTILINE)
    written = outcome.as_json()
    assert [row["variant"] for row in written["rows"]] == ["short", "long"]
    assert written.pop("steps")[0]["name"] == "index"
    assert written == json.loads(Path("out/results.json").read_text())
    assert "| Long | 0.4000 (0.4000, +0.0000) |" in Path("out/results.md").read_text()


def test_steps_are_shown_with_their_titles_and_times(start, capsys):
    """A title cannot control the terminal."""
    text = COUNT.replace("- name: train\n", '- name: train\n    title: "Train ${epochs} epoch\\e[2J: to see"\n')
    outcome = Outcome(start(text=text))
    out, shown = capsys.readouterr()
    assert out == ""
    assert "[2/3] Train 1 epoch\\x1b[2J: to see\n" in shown
    assert Path("out/logs/train.log").read_text().startswith("$ rkit train --from out/index")
    assert re.search(r"^train +0\.\d +\d+%  Train 1 epoch", outcome.summary, re.MULTILINE)
    start(text=text)
    shown = capsys.readouterr().err
    assert shown == "[1-3/3] Unchanged since an earlier run: index, train, figures\n"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"pooler": "clss"}, "unknown pooler 'clss'; did you mean 'cls'"),
        (
            {"pooler": "cls", "set": {"pooler": {"layre": 3}}},
            "pooler 'cls' has no option 'layre'; did you mean 'layer'",
        ),
        ({"set": {"pooler.layer": "first"}}, "option 'layer' of pooler 'cls' cannot be 'first'"),
        (
            {"loss": "contrastive", "set": {"loss.temprature": 1}},
            "loss 'contrastive' has no option 'temprature'; did you mean 'temperature'",
        ),
        ({"set": {"loss.temprature": 1}}, "loss 'contrastive' has no option 'temprature'"),
        ({"set": {"limt": 3}}, "rkit train has no option 'limt'; did you mean 'limit'"),
        ({"encoder": "transfomer"}, "unknown encoder 'transfomer'; did you mean 'transformer'"),
        ({"command": "mine-negatives", "set": {"skip": 3}}, "rkit mine-negatives has no option 'skip'"),
    ],
)
def test_components_and_their_options_are_checked_before_anything_runs(tmp_path, options, problem):
    from retrievalkit.cli import main

    command, usual = options.pop("command", "train"), {"examples": "e"}
    usual |= {"model": "bert"} if command == "train" else {"from": "bm25", "corpus": "c"}
    options = json.dumps({**usual, **options})
    Path(tmp_path / "recipe.yaml").write_text(
        f"name: x\nsteps:\n  - {{name: train, command: {command}, output: model, with: {options}}}\n"
    )
    with pytest.raises(DataError, match=rf"recipe.yaml:3: step 'train': {problem}"):
        run(load_recipe(tmp_path / "recipe.yaml"), tmp_path / "out", cli=main.with_all_commands())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "settings", [(), ("index.name=https://root:s3cret@host",), ("epochs=https://root:s3cret@host",)]
)
def test_a_password_in_a_recipe_is_refused_before_it_is_written(start, settings):
    text = COUNT if settings else COUNT.replace("name: [one, two]", "name: https://root:s3cret@host")
    text = text.replace('epochs: "${epochs}", ', "") if "epochs" in "".join(settings) else text
    with pytest.raises(InputError, match="contains a user or a password") as caught:
        start(*settings, text=text)
    assert "s3cret" not in str(caught.value)
    assert not Path("out").exists()


def test_all_missing_packages_are_named_in_a_single_message(monkeypatch, fresh_registry):
    monkeypatch.setenv("RKIT_PLUGINS", "")
    fresh_registry()
    options = {"model": "package:no_such_model/model", "set": {"a": ["package:click/x"]}}
    steps = (Step("train", "train", options), Step("sync", "sync", {}))
    requires = {"no-such-plugin": "a pooler", "click": "options"}
    with pytest.raises(InputError) as caught:
        plan(Recipe("demo", "", {}, steps, "", requires=requires), None, main)
    assert str(caught.value).splitlines() == [
        "the recipe 'demo' needs packages that are not installed:",
        "  no-such-plugin: a pooler",
        "  no-such-model: the pretrained encoder",
        "  retrievalkit-documents: the command 'sync'",
        "Install: pip install no-such-plugin no-such-model retrievalkit-documents",
    ]
    assert plan(Recipe("demo", "", {}, (), "", requires={"click": "options"}), None, main) == []


# --- logs ---


def test_the_log_has_the_command_line_and_both_streams(tmp_path, capsys, monkeypatch):
    log = StepLog(tmp_path, "near/train")
    printed = "$ rkit train\nstep 1\na note\ntrained\n\n"
    for resume, text in ((False, printed), (True, printed * 2), (False, printed)):  # a resumed step adds to its log
        with log.collecting("rkit train", resume=resume):
            print("step 1")
            print("a note", file=sys.stderr)
            print("trained\n")
        assert (tmp_path / "logs/near/train.log").read_text() == text
    assert (log.result, log.tail(2)) == ("trained", ["a note", "trained"])
    assert capsys.readouterr() == ("", "")
    # On a terminal, standard error is shown.
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with log.collecting("rkit train", resume=False):
        print("50 %", file=sys.stderr)
    assert capsys.readouterr().err == "50 %\n"


def test_a_logging_handler_created_during_a_step_works_after_it(tmp_path, capsys):
    with StepLog(tmp_path, "train").collecting("rkit train", resume=False):
        handler = logging.StreamHandler()
    handler.emit(logging.makeLogRecord({"msg": "afterwards"}))
    assert capsys.readouterr().err == "afterwards\n"
