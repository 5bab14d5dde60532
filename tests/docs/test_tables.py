"""Tables of the built manual in a browser, on a phone and a laptop."""

import subprocess
import sys
from pathlib import Path

import pytest
from browsing import NEEDS_CHROMIUM, browser  # noqa: F401 (fixture)

pytest.importorskip('furo', reason="the extra 'docs' is not installed")
pytestmark = NEEDS_CHROMIUM

DOCS = Path(__file__).parents[2] / 'docs'
# The settings of the manual, without its generated pages.
CONF = f"""
import runpy, sys, types
sys.modules['generate'] = types.SimpleNamespace(write=lambda docs: None)
globals().update(runpy.run_path({str(DOCS / 'conf.py')!r}))
html_static_path = [{str(DOCS / 'manual.css')!r}]
"""
TEXT = 'Draws the pieces of training text at random with a transform of normalised or raw images.'
TABLES = f"""
# Tables

| interface | | parts |
|---|---|---|
| [Augmentation](https://arxiv.org) | {TEXT} | `ColourJitter`, `RandAugment`, `RandomErasing`, `RandomResizedCrop` |

| training | masked | difference (interval) | | masked | difference (interval) | |
|---|---|---|---|---|---|---|
| 5 % | 2.210 | +0.319 (+0.270 to +0.368) | hurts | 2.409 | +0.266 (+0.216 to +0.316) | inconclusive |

| parameter | type | default | |
|---|---|---|---|
| `tokenizer` | a TokenizerConfig (@Name()) | `@NoTokenizer()` | {TEXT} |
| `{'name_' * 30}` | a number | `@variance_scaling(scale=2.0, mode='fan_in', distribution='normal')` | {TEXT} |

| comparisons | 1, 3 | 4, 3 | 6, 3 | 16, 3 | 4, 4 | 16, 4 | 43, 4 | 4, 5 | 16, 5 | 43, 5 | 16, 10 | 43, 10 |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
| learns at 0.5 | 4.1 (4.1) | 0.1 (10.7) | 0.0 (13.8) | 0.0 (8.0) | 2.4 (2.4) | 0.0 (3.5) \
| 0.0 (5.3) | 0.9 | 1.3 | 2.8 | 3.6 | 4.1 |
"""
# Words of at most 16 characters that are on several lines, and the widths of the columns of long texts.
MEASURE = r"""() => {
  const broken = [];
  for (const cell of document.querySelectorAll('td, th')) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      for (const word of texts.currentNode.data.matchAll(/\S{2,16}(?!\S)/g)) {
        if (word.index && /\S/.test(word.input[word.index - 1])) continue;
        const range = document.createRange();
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
        if (lines.size > 1) broken.push(word[0]);
      }
    }
  }
  const widths = [...document.querySelectorAll('td')]
    .filter((cell) => cell.innerText.length > 60).map((cell) => cell.clientWidth);
  return { broken, widths, page: document.documentElement.scrollWidth };
}"""


@pytest.fixture(scope='module')
def page_of_tables(tmp_path_factory):
  folder = tmp_path_factory.mktemp('manual')
  (folder / 'conf.py').write_text(CONF)
  (folder / 'index.md').write_text(TABLES)
  command = [sys.executable, '-m', 'sphinx', '-q', '-W', folder, folder / '_build']
  subprocess.run(command, check=True)
  return folder / '_build' / 'index.html'


@pytest.mark.parametrize('width', [390, 1280])
def test_columns_of_tables_are_wide_enough_for_words(browser, page_of_tables, width):  # noqa: F811
  page = browser.new_page(viewport={'width': width, 'height': 800})
  page.goto(page_of_tables.as_uri())
  measured = page.evaluate(MEASURE)
  assert measured['broken'] == []
  assert len(measured['widths']) == 5 and min(measured['widths']) >= 150
  assert measured['page'] <= width
