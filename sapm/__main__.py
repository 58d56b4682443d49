"""`python -m sapm` is the command line."""

from sapm.cli.main import app

if __name__ == "__main__":
    app()
