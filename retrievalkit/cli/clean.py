"""`rkit clean`: options and hand-off."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.options import echo, json_option
from retrievalkit.report.counts import counted


@click.command()
@click.argument("folders", nargs=-1, metavar="[FOLDER...]")
@click.option("--remove", "--yes", "remove", is_flag=True, help="Remove them, instead of listing them.")
@json_option
def clean(folders: tuple[str, ...], remove: bool, as_json: bool) -> list[dict[str, Any]]:
    """List what killed commands left in FOLDERs, by default the current one, and remove it with --remove.

    Also looks into the folder for temporary files. A folder that lost its name while it was replaced gets it back. What
    a running command holds is left alone.
    """
    from retrievalkit.artifacts import leftovers
    from retrievalkit.data.files import existing

    found = list(leftovers.find_leftovers([existing(one) for one in folders or (".",)]))
    rows = []
    for one in found:
        row: dict[str, Any] = {"path": str(one.path), "bytes": one.size, "kind": one.kind, "made_by": one.made_by}
        rows.append(row | ({"removed": leftovers.remove(one)} if remove else {}))
    lines = [f"{_done(row)}{row['path']}  {row['bytes']:,} bytes, of {row['made_by']}" for row in rows]
    if not rows:
        lines.append("nothing left by killed commands")
    elif not remove:
        total = sum(one.size for one in found)
        lines.append(f"{counted(len(rows), 'leftovers')}, {total:,} bytes; rkit clean --remove removes them")
    return echo(as_json, rows, "\n".join(lines))


def _done(row: dict[str, Any]) -> str:
    if "removed" not in row:
        return ""
    if not row["removed"]:
        return "in use: "
    return "restored " if row["kind"] == "lost" else "removed "
