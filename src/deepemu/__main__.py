"""``python -m deepemu`` is the command ``deepemu``."""

from deepemu.cli import run

run()
