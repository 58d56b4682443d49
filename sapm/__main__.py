"""`python -m sapm` is the command line."""

from sapm.cli import app

if __name__ == "__main__":
    app()
