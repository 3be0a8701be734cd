"""``python -m deepemu`` is the command ``deepemu``."""

from deepemu.cli.main import run

if __name__ == "__main__":
    run()
