"""The page that compares runs in a browser: chosen, hovered, on a phone, in the dark, without a network."""

import re

import pytest
from browsing import NEEDS_CHROMIUM, browser, open_page  # noqa: F401 (fixtures)

from t2x.runs.compare import write_comparison

pytestmark = NEEDS_CHROMIUM


@pytest.fixture
def visit(open_page, tmp_path):  # noqa: F811
  """`visit(folders, width, scheme)`: the page of runs."""

  def open_comparison(folders, **settings):
    write_comparison(folders, tmp_path / 'compare.html')
    return open_page(tmp_path / 'compare.html', '#curves *', **settings)

  return open_comparison


@pytest.fixture
def three(make_run):
  """Three runs: one with other metrics, one that failed."""
  accuracy = '{"step": 50, "split": "eval", "accuracy": 0.5}\n{"step": 90, "split": "eval", "accuracy": 0.6}\n'
  return [
    make_run('plain'),
    make_run('<b>wide</b>', 'failed', reason='loss or gradient not finite', batch_size=8),
    make_run('a_run_with_quite_a_long_name_of_many_words', 'running', metrics=accuracy),
  ]


def test_metrics_axes_and_runs_are_chosen(visit, three):
  page = visit(three)
  assert page.locator('#legend svg').first.bounding_box()['width'] == 22
  lines = page.locator('#curves path[stroke-width="2"]')
  assert lines.count() == 2
  left = float(page.locator('#curves line.axis').last.get_attribute('x1'))
  assert all(line.get_attribute('d').startswith(f'M{left:.1f},') for line in lines.all())
  assert page.locator('#without').inner_text() == (
    'Without loss (eval): a_run_with_quite_a_long_name_of_many_words.'
  )
  page.locator('#metric').select_option(label='accuracy (eval)')
  assert lines.count() == 1
  page.locator('#metric').select_option(label='loss (train)')
  page.locator('#axis').select_option('seconds')
  texts = page.locator('#curves svg text').all_text_contents()
  assert 'seconds of training' in texts and '10' in texts
  page.get_by_role('button', name='plain').click()
  assert lines.count() == 1
  page.get_by_role('button', name='<b>wide</b>').click()
  assert page.locator('#curves').inner_text() == 'No selected run has this metric.'


def test_tables_show_states_and_differences_as_text(visit, three):
  page = visit(three)
  rows = page.locator('#runs tbody tr').all_inner_texts()
  assert [row.split('\t')[1] for row in rows] == ['done', 'failed', 'running']
  assert page.locator('#runs b').count() == 0 and '<b>wide</b>' in rows[1]
  cells = page.locator('#differences tbody td').all_inner_texts()
  assert cells == ['Experiment.trainer.batch_size', '4', '8', '=']


def test_hovering_a_curve_shows_its_run(visit, three):
  page = visit(three)
  page.locator('#curves svg').scroll_into_view_if_needed()
  box = page.locator('#curves svg').bounding_box()
  tips = set()
  for y in range(40, int(box['height']) - 40, 8):
    page.mouse.move(box['x'] + 0.5 * box['width'], box['y'] + y)
    tips.update(page.locator('#curves .tip').all_inner_texts())
  assert any(re.match(r'<b>wide</b>\nloss 1\nstep 66, 6.6 seconds', tip) for tip in tips), tips


def test_one_run_and_equal_runs_are_clear(visit, make_run):
  page = visit([make_run('a')])
  assert 'no other config' in page.locator('#differences-note').inner_text()
  page = visit([make_run('b'), make_run('c')])
  assert page.locator('#differences-note').inner_text() == 'No difference.'
  empty = make_run('d', metrics='')
  page = visit([empty])
  assert page.locator('#curves').inner_text() == 'No run has metrics.'
  assert 'd: no metrics' in page.locator('#problems').inner_text()


@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_a_phone_shows_the_page_without_scrolling_sideways(visit, three, scheme):
  page = visit(three, width=390, scheme=scheme)
  assert page.evaluate('document.documentElement.scrollWidth') <= 390
  page.set_viewport_size({'width': 1280, 'height': 800})
  page.wait_for_selector('#curves svg[viewBox^="0 0 11"]')
