"""``python -m deepemu`` is the command ``deepemu``."""

from deepemu.cli.commands import run

if __name__ == "__main__":
    run()
