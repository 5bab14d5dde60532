"""The page of `t2x referee` in a browser: on a phone and a large screen, light and dark, without a network."""

import numpy as np
import pytest
from browsing import NEEDS_CHROMIUM, browser, open_page  # noqa: F401 (fixtures)

from t2x.cli import main

pytestmark = NEEDS_CHROMIUM
NAMES = ('base', 'a<b>_with_a_long_name_' + 'x' * 30, 'third')


@pytest.fixture
def page_file(tmp_path):
  """Three variants at four sizes with compute: verdicts, a figure and multipliers."""
  rng = np.random.default_rng(0)
  lines = ['variant,size,seed,flops,seconds,loss']
  for name, multiplier in zip(NAMES, (1.0, 1.5, 1.0), strict=True):
    for size, flops in enumerate(1e18 * 3.0 ** np.arange(4)):
      loss = 1.7 + 60 * (multiplier * flops) ** -0.1
      lines += [
        f'{name},s{size},{s},{flops},{flops / 1e15},{loss + 0.003 * rng.normal()}' for s in range(5)
      ]
  (tmp_path / 't.csv').write_text('\n'.join(lines))
  page = tmp_path / 'p.html'
  assert main(['referee', str(tmp_path / 't.csv'), '--baseline', 'base', '--html', str(page)]) == 0
  return page


@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('width', [390, 1280])
def test_the_page_fits_the_window_and_has_its_parts(open_page, page_file, width, scheme):  # noqa: F811
  page = open_page(page_file, '#verdicts tbody tr', width, scheme)
  assert page.evaluate('document.documentElement.scrollWidth') <= width
  assert page.locator('#verdicts tbody tr').count() == 12
  assert page.locator('#forest path.mark').count() == 8
  assert page.locator('b', has_text='_with_a').count() == 0
  text = page.locator('main').inner_text()
  for part in ('▲ helps', 'Noise floor', 'Not corrected for', 'Sc = 1.4', 'wall-clock Sw'):
    assert part in text
