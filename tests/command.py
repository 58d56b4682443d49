"""`sapm` with arguments, within this process."""

from typer.testing import CliRunner

from sapm.cli.main import app


def call(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    if code in (1, 2):
        assert "Traceback" not in result.output and len(result.stderr.strip().splitlines()) == 1
    return result
