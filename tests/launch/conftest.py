"""`t2x launch` in this process."""

from pathlib import Path

import pytest

from t2x.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def launch(capsys, monkeypatch):
  """`launch(*words)` returns the exit code of t2x launch and what it printed; configs are not checked."""
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr('t2x.cli.launch._check_config', lambda args, num_devices: None)

  def run(*words):
    try:
      code = main(['launch', *map(str, words)])
    except SystemExit as stop:  # From argparse.
      code = stop.code
    return code, capsys.readouterr()

  return run


@pytest.fixture
def stubs(tmp_path, monkeypatch):
  """`stubs(name=script)` puts commands on the path; `calls()` returns the arguments of their calls."""
  folder, log = tmp_path / 'stubs', tmp_path / 'calls.txt'
  folder.mkdir()
  log.touch()
  monkeypatch.setenv('PATH', str(folder), prepend=':')

  class Stubs:
    def __call__(self, **scripts):
      for name, script in scripts.items():
        path = folder / name
        # One line per call.
        words = "${*//$'\\n'/; }"
        path.write_text(f'#!/bin/bash\necho "{name} {words}" >> {log}\n{script}\n')
        path.chmod(0o755)

    def calls(self):
      return log.read_text().splitlines()

  return Stubs()
