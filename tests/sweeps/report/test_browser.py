"""report.html in a browser: clicked, hovered, on a phone, in the dark, without a network.

Needs Playwright (the extra `browser`) and a chromium, such as Debian's package.
"""

import os
import re
import shutil

import pytest

from t2x.sweeps.report import write_report

sync_api = pytest.importorskip('playwright.sync_api', reason="pip install 't2x[browser]'")
CHROMIUM = os.environ.get('CHROMIUM') or shutil.which('chromium') or shutil.which('google-chrome')
pytestmark = pytest.mark.skipif(not CHROMIUM, reason='no chromium: apt-get install chromium')


@pytest.fixture(scope='module')
def browser():
  with sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=['--no-sandbox'])
    yield browser
    browser.close()


@pytest.fixture
def visit(browser, sweep):
  """`visit(width, scheme, **sweep)`: the page of a sweep; errors and requests are failures."""
  contexts, wrong = [], []

  def open_page(width=1280, scheme='light', has_touch=False, **settings):
    folder = sweep(**settings)
    write_report(folder)
    view = {'width': width, 'height': 800}
    context = browser.new_context(viewport=view, color_scheme=scheme, has_touch=has_touch)
    contexts.append(context)
    page = context.new_page()
    page.on('console', lambda message: wrong.append(message.text))
    page.on('pageerror', lambda error: wrong.append(str(error)))
    address = (folder / 'report.html').as_uri()
    page.on('request', lambda request: request.url == address or wrong.append(request.url))
    page.goto(address)
    page.wait_for_selector('#curves svg')
    return page

  yield open_page
  for context in contexts:
    context.close()
  assert [one for one in wrong if not one.startswith('data:')] == []


def variants(page):
  return page.locator('#verdicts tbody tr td:first-child').all_text_contents()


def test_headers_sort_by_click_and_by_key(visit):
  page = visit()
  assert variants(page) == ['vanilla', 'geglu', 'rezero', 'relu', 'fixup']
  header = page.get_by_role('button', name='difference', exact=True)
  header.click()
  # The baseline has no difference, and comes last.
  assert variants(page) == ['geglu', 'fixup', 'relu', 'rezero', 'vanilla']
  assert page.locator('#forest svg text.name').all_text_contents()[0].startswith('geglu')
  page.keyboard.press('Enter')
  assert variants(page) == ['rezero', 'relu', 'fixup', 'geglu', 'vanilla']
  assert page.locator('#verdicts th[aria-sort=descending]').inner_text() == 'difference'
  assert page.locator('#forest svg text.name').all_text_contents()[0].startswith('rezero')


def test_filters_narrow_all_that_is_shown(visit):
  page = visit()
  page.locator('#filter').fill('re')
  assert variants(page) == ['rezero', 'relu']
  assert page.locator('#shown').inner_text() == '2 of 5 rows'
  assert page.locator('#forest circle').count() == 2
  assert page.locator('#scatter circle').count() == 2
  assert page.locator('#legend button').all_text_contents() == ['vanilla', 'rezero', 'relu']
  page.locator('#verdict').select_option('hurts')
  assert variants(page) == ['rezero']
  page.locator('#filter').fill('')
  page.locator('#verdict').select_option('diverged')
  assert variants(page) == ['fixup']


def test_hovering_a_curve_tells_its_run(visit):
  page = visit()
  page.locator('#curves svg').scroll_into_view_if_needed()
  box = page.locator('#curves svg').bounding_box()
  tips = set()
  for part in (0.3, 0.6, 0.8):
    for y in range(40, int(box['height']) - 40, 6):
      page.mouse.move(box['x'] + part * box['width'], box['y'] + y)
      tips.update(page.locator('#curves .tip').all_inner_texts())
  assert any(re.match(r'geglu\nseed \d\nloss \d\.\d+\nstep \d+', tip) for tip in tips)
  assert any('seed 0, diverged' in tip for tip in tips)
  page.mouse.move(5, 5)
  assert page.locator('#curves .tip').count() == 0


def test_a_touched_difference_tells_its_interval(visit):
  page = visit()
  page.locator('#forest circle').first.click()
  text = page.locator('#forest .tip').inner_text()
  assert re.search(
    r'geglu\nloss 2\.\d+, 5 of 5 seeds\ndifference \u22120\.\d+, 95 %: \u22120\.\d+ to', text
  )
  page.locator('#scatter circle').first.hover()
  assert 'parameters 100k' in page.locator('#scatter .tip').inner_text()


def test_a_finger_tells_too(visit):
  page = visit(width=375, has_touch=True)
  page.locator('#forest').scroll_into_view_if_needed()
  box = page.locator('#forest circle').nth(1).bounding_box()
  page.touchscreen.tap(box['x'] + 4, box['y'] + 4)
  assert page.locator('#forest .tip b').inner_text() == 'rezero'


def test_axes_and_metrics_switch(visit):
  page = visit()
  ticks = lambda figure: ' '.join(page.locator(f'#{figure} svg text').all_text_contents())  # noqa: E731
  seen = {ticks('curves')}
  for axis, last in (('flops', '60G'), ('seconds', '6')):
    page.locator('#curve-x').select_option(axis)
    assert last in ticks('curves').split()
    seen.add(ticks('curves'))
  page.locator('#curve-metric').select_option('eval/accuracy')
  seen.add(ticks('curves'))
  page.locator('#curve-late').check()
  seen.add(ticks('curves'))
  assert len(seen) == 5
  before = ticks('scatter')
  page.locator('#cost').select_option('seconds')
  assert ticks('scatter') != before


def test_the_legend_chooses_curves(visit):
  effects = {'vanilla': 0.0} | {f'variant {number}': 0.01 * number for number in range(12)}
  page = visit(effects=effects, seeds=2)
  pressed = page.locator('#legend button[aria-pressed=true]')
  assert page.locator('#legend button').count() == 13
  assert pressed.count() == 6
  lines = page.locator('#curves path[stroke-width="2"]').count()
  page.get_by_role('button', name='variant 11', exact=True).click()
  assert pressed.count() == 7
  assert page.locator('#curves path[stroke-width="2"]').count() == lines + 1
  page.keyboard.press('Enter')
  assert pressed.count() == 6


def test_a_grid_is_shown_whole_or_by_point(visit):
  points = [{'Stack.num_layers': 2}, {'Stack.num_layers': 4}]
  page = visit(effects={'vanilla': 0.0, 'geglu': -0.12}, seeds=3, points=points)
  assert len(variants(page)) == 4
  page.locator('#point').select_option('1')
  assert variants(page) == ['vanilla (num_layers = 4)', 'geglu (num_layers = 4)']


@pytest.mark.parametrize('width', [320, 375, 800])
def test_a_phone_shows_the_page_without_scrolling_sideways(visit, width):
  page = visit(width=width)
  assert page.evaluate('document.documentElement.scrollWidth') <= width
  scrolls = 'one => one.scrollWidth > one.clientWidth'
  assert page.locator('#verdicts').evaluate(scrolls), 'the table scrolls inside'
  page.set_viewport_size({'width': 1280, 'height': 800})
  # Drawn anew for the width, 1280 without the margins.
  page.wait_for_selector('#curves svg[viewBox^="0 0 11"]')


def test_a_phone_shows_the_labels_at_the_edges_whole(visit):
  page = visit(width=390)
  # The outermost ticks lie next to the edges.
  row = "{label: 'one', difference: 0.0001, difference_low: -0.0005, difference_high: 0.0005}"
  page.evaluate(f"drawForest(byId('forest'), [{row}], {{goal: 'min', lines: () => []}})")
  chart = page.locator('#forest svg').bounding_box()
  labels = page.locator('#forest text[text-anchor=middle]').all()
  assert labels[0].text_content() == '\u22125.0e\u22124'
  for box in (one.bounding_box() for one in labels):
    assert chart['x'] <= box['x'] and box['x'] + box['width'] <= chart['x'] + chart['width']


def test_dark_mode_changes_the_colours(visit):
  page = visit(scheme='dark')
  colours = 'one => [getComputedStyle(one).backgroundColor, getComputedStyle(one).color]'
  dark = page.locator('body').evaluate(colours)
  page.emulate_media(color_scheme='light')
  light = page.locator('body').evaluate(colours)
  brightness = lambda colour: sum(map(int, re.findall(r'\d+', colour)[:3]))  # noqa: E731
  assert brightness(dark[0]) < 120 < brightness(dark[1])
  assert brightness(light[1]) < 120 < brightness(light[0])


def test_a_partial_sweep_says_so(visit):
  page = visit(ended=7)
  assert 'Partial report: 7 of 25 trials ended' in page.locator('#progress').inner_text()
  assert page.get_by_text('None.').count() == 1


def test_before_the_first_trial_has_ended(visit):
  page = visit(ended=0)
  assert page.locator('#forest').inner_text() == 'No comparison is available yet.'
  assert page.locator('#verdicts tbody tr').count() == 5


def test_what_a_user_wrote_is_text(visit):
  page = visit()
  assert '</script><b>loss</b>' in page.locator('#unfinished').inner_text()
  assert page.locator('#unfinished b').count() == 0
