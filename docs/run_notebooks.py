"""Run the example notebooks from the start and store their outputs.

    python docs/run_notebooks.py                # all
    python docs/run_notebooks.py step-function  # some

Each notebook remembers the code that its outputs came from, by `digest`; a test compares.
"""

import argparse
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "examples"
LONGEST = 900  # seconds a cell may take


def digest(notebook: nbformat.NotebookNode) -> str:
    """What all code cells say, in 64 hexadecimal digits."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()


def run(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=LONGEST, kernel_name="python3").execute()
    for cell in notebook.cells:  # when each cell ran is nobody's business
        cell.metadata = {}
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "executed": digest(notebook),
    }
    nbformat.write(notebook, path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(known)}; all by default")
    names = parser.parse_args(arguments).names or known
    if unknown := set(names) - set(known):
        parser.error(f"there is no notebook {', '.join(sorted(unknown))}")
    for name in names:
        start = time.perf_counter()
        run(FOLDER / f"{name}.ipynb")
        print(f"{name}: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
