"""The page of statistics in a browser: on a phone and a large screen, light and dark, without a network."""

import pytest
from browsing import NEEDS_CHROMIUM, browser, open_page  # noqa: F401 (fixtures)

from t2x.data import Bytes, PackPairs, split_statistics, token_rows, write_statistics

pytestmark = NEEDS_CHROMIUM


@pytest.fixture
def page_file(tmp_path):
  from test_report import Pairs

  source = Pairs({'source': 'a' * (i % 50 + 1), 'target': 'b' * (i % 7)} for i in range(400))
  tokenizer = Bytes().train([])
  rows = token_rows(source, 'train', tokenizer, PackPairs(32, 32), tmp_path)
  found = split_statistics('train', source, dict, tokenizer, rows)
  write_statistics('Data of <b>pairs</b> ' + 'with_a_long_name_' * 8, [found], tmp_path / 'p.html')
  return tmp_path / 'p.html'


@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('width', [390, 1280])
def test_bars_fit_the_window(open_page, page_file, width, scheme):  # noqa: F811
  page = open_page(page_file, '#splits table', width, scheme)
  assert page.evaluate('document.documentElement.scrollWidth') <= width
  assert page.locator('h3').all_inner_texts() == ['source', 'target']
  assert page.locator('b').count() == 0
  bars = [bar.bounding_box() for bar in page.locator('.bar > div').all()]
  assert all(bar['x'] + bar['width'] <= width for bar in bars)
  cells = page.locator('section section').first.locator('tbody tr').all_inner_texts()
  numbers = [int(cell.split('\t')[1].replace(',', '')) for cell in cells]
  assert sum(numbers) == 400
  widths = [bar['width'] for bar in bars[: len(numbers)]]
  assert widths[numbers.index(max(numbers))] == max(widths)
  # Lengths from 32 do not fit in a row of 32 tokens.
  over = page.locator('tr.over th').all_inner_texts()
  assert over == ['32\u201347', '48\u201363']
