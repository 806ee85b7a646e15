"""`rkit run` and `rkit quickstart`, in this package because the steps of a recipe are `rkit` commands.

rkit run RECIPE --output DIR [--variants NAME,...] [--set NAME=VALUE] [--set STEP.OPTION=VALUE] [--force] [--jobs N]
rkit run RECIPE --output DIR --plan
rkit quickstart [--corpus ... --examples ... --queries ... --qrels ...] [--output quickstart]
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge

from retrievalkit import storage
from retrievalkit.contracts.declarations import Argument, CommandOptions, Flag, Place, Reads, Rest, command
from retrievalkit.errors import InputError
from retrievalkit.recipes.settings import flatten, nested

if TYPE_CHECKING:
    from retrievalkit.recipes.outcome import Outcome, Plan
    from retrievalkit.recipes.quickstart import Quickstart


@dataclass(frozen=True, kw_only=True)
class StepsOptions(CommandOptions):
    """Options of commands that run the steps of a recipe.

    Args:
        force: Run every step again, including steps whose inputs have not changed.
        set: Values of the recipe by name, and options of its steps: corpus=data, stage1.batch_size=16.
    """

    # A run locks its folder from inside, because the parent may not be writable.
    holds_output: ClassVar[bool] = False

    force: bool = False
    set: Annotated[Mapping[str, Any], Rest()] = field(default_factory=dict)

    @property
    def overrides(self) -> dict[str, Any]:
        """Values, nested by their dotted names."""
        return nested(flatten(self.set).items())


@dataclass(frozen=True)
class RunOptions(StepsOptions):
    """Options of `run`.

    Args:
        recipe: A file, or the name of a recipe of retrievalkit or (PLUGIN/NAME) of a plugin.
        output: Folder for all outputs of the steps.
        variants: Variants to run, by name or pattern, such as mlr,dpr_*; by default all.
        plan: Show each step's command line, and the steps that are already done; run nothing.
        jobs: Number of steps to run in parallel on this machine.
    """

    recipe: Annotated[Place, Argument(), Reads()]
    output: Annotated[Place, Flag(("--output", "-o"))]
    _: KW_ONLY
    variants: Annotated[tuple[str, ...] | None, Flag(metavar="NAMES")] = None
    plan: bool = False
    jobs: Annotated[int, Ge(1)] | None = None


@command("run", RunOptions)
def run(options: RunOptions) -> Outcome | Plan:
    """Run the steps of a recipe in order, skipping steps whose inputs have not changed."""
    from retrievalkit.cli.main import main
    from retrievalkit.recipes import run as program
    from retrievalkit.recipes.recipe import load_recipe

    storage.place_of(str(options.output))  # refuses an object store
    names = [name.strip() for text in options.variants or () for name in text.split(",")]
    recipe = load_recipe(
        str(options.recipe), options.overrides, None if options.variants is None else [*filter(None, names)]
    )
    output, cli = str(options.output), main.with_all_commands()
    if options.plan:
        return program.preview(recipe, output, cli=cli, force=options.force)
    return program.run(recipe, output, cli=cli, force=options.force, parallel=options.jobs)


@dataclass(frozen=True)
class QuickstartOptions(StepsOptions):
    """Options of `quickstart`.

    Args:
        output: Folder for all outputs of the steps; its `compare.html` compares the systems question by question.
        model: Pretrained encoder to start from.
        corpus: Your own passages instead of the documentation of installed packages.
        examples: Your own training examples.
        queries: Your own test queries.
        qrels: Your own judgements of the test queries.
    """

    output: Annotated[Place, Flag(("--output", "-o"))] = "quickstart"
    _: KW_ONLY
    model: Annotated[Place | None, Reads(accepts=("model",))] = None
    corpus: Annotated[Place | None, Reads(accepts=("passages",))] = None
    examples: Annotated[Place | None, Reads(accepts=("examples",))] = None
    queries: Annotated[Place | None, Reads(accepts=("queries",))] = None
    qrels: Annotated[Place | None, Reads(accepts=("judgements",))] = None


@command("quickstart", QuickstartOptions)
def quickstart(options: QuickstartOptions) -> Quickstart:
    """Train, index, search and compare on real text: a first run of all steps, with a table of results."""
    from retrievalkit.cli.main import main
    from retrievalkit.recipes.quickstart import results
    from retrievalkit.recipes.recipe import load_recipe
    from retrievalkit.recipes.run import run as run_recipe

    storage.place_of(str(options.output))  # refuses an object store
    data = {name: getattr(options, name) for name in ("corpus", "examples", "queries", "qrels")}
    missing = [name for name, value in data.items() if value is None]
    if missing and len(missing) < len(data):
        flags = " ".join(f"--{name}" for name in data if name not in missing)
        msg = f"{flags} is set without --{' --'.join(missing)}. Your own data needs all four: add the others."
        raise InputError(msg)
    values: dict[str, Any] = {"model": options.model} if options.model else {}
    if not missing:
        values |= data
    # The page has plots if matplotlib is installed.
    plot = importlib.util.find_spec("matplotlib") is not None
    recipe = load_recipe("quickstart", {"plot": plot, **options.overrides, **values})
    outcome = run_recipe(recipe, str(options.output), cli=main.with_all_commands(), force=options.force)
    title = "Questions that no model was trained on" if missing else "Your questions"
    return results(recipe, outcome, Path(options.output), title)
