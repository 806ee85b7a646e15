"""The recipes, as files in this folder."""

from pathlib import Path

FOLDER = Path(__file__).parent
