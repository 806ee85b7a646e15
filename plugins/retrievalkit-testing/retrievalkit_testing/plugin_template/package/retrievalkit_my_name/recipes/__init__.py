"""The recipes, as files beside this one."""

from pathlib import Path

FOLDER = Path(__file__).parent
