"""Adds the files beside the package that commands read to the wheel: configs, studies, and differences of tests."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildPy(build_py):
  """Copies the files to t2x/shipped, where `t2x.config.shipped_folder` finds them."""

  def run(self):
    super().run()
    for pattern in (
      'configs/**/*.gin',
      'experiments/**/*.gin',
      'experiments/*/README.md',
      'tests/differences.json',
    ):
      for path in () if self.editable_mode else Path().glob(pattern):
        target = Path(self.build_lib, 't2x', 'shipped', path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


setup(cmdclass={'build_py': BuildPy})
