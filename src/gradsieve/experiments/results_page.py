"""docs/results.md from results/*.json: ``python -m gradsieve.experiments.results_page results docs/results.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from gradsieve.experiments.experiment import EXPERIMENTS
from gradsieve.experiments.records import Record, read_records
from gradsieve.experiments.results_table import draw_records, pictures_of, report_page
from gradsieve.experiments.trials import trials_section

HEAD = """# Results

Every figure of ours beside the paper's. How far they agree, and why some do not:
[reproduction.md](reproduction.md).

Rendered from `results/*.json` by `make docs`; do not edit. Every record there names its command, seed, commit and
device.

The lines of a row:

- `paper`: the paper's figure, as printed: mean ± standard deviation over the last ten epochs and its seeds.
- `gradsieve`: ours, the mean over the last ten epochs of each seed, ± the standard deviation between seeds, with their
  number in brackets.
- `last epoch`: the same for the last epoch alone.
- `ratio` (Table 4): the time as a multiple of Standard's.

Preset `authors` is the paper's recipe: it trains as the authors' code does. Preset `proper` is ours. A cell that nobody
ran is blank; `gradsieve reproduce` and `gradsieve publish` fill it: see
[the guide](guide.md#the-papers-tables-on-your-machine).
"""
TRIALS = "trials.json"
PREFIX = "results-"  # of the names of the pictures beside the page


def read_results(folder: Path) -> dict[str, list[Record]]:
    """The records of every experiment that has any."""
    found = {name: read_records(folder / f"{name}.json") for name in EXPERIMENTS}
    return {name: records for name, records in found.items() if records}


def results_page(results: dict[str, list[Record]], trials: list[Record]) -> str:
    """The page. The names of its pictures follow from the records."""
    sections = [
        report_page(name, records, pictures_of(name, records, PREFIX), blanks=True) for name, records in results.items()
    ]
    if trials:
        sections.append(trials_section(trials, results.get("table2", [])))
    absent = [name for name in EXPERIMENTS if name not in results]
    note = f"Not run yet: {', '.join(absent)}.\n" if absent else ""
    return "\n".join([HEAD, *sections, note]).rstrip("\n") + "\n"


def main(source: Path, page: Path) -> None:
    """Write the page and the pictures beside it."""
    results = read_results(source)
    page.write_text(results_page(results, read_records(source / TRIALS)))
    for name, records in results.items():
        draw_records(name, records, page.parent, PREFIX)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
