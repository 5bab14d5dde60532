"""report.html in a browser: clicked, hovered, on a phone, in the dark, without a network."""

import re
import sys

import pytest
from browsing import NEEDS_CHROMIUM, browser, open_page  # noqa: F401 (fixtures)

from t2x.statistics.laws import Estimate
from t2x.sweeps.published import Published
from t2x.sweeps.report import report_data, write_report
from t2x.sweeps.report.fit import Fit, Size

pytestmark = NEEDS_CHROMIUM


@pytest.fixture
def visit(open_page, sweep):  # noqa: F811
  """`visit(width, scheme, **sweep)`: the page of a sweep, after `change(folder)`."""

  def open_report(width=1280, scheme='light', has_touch=False, change=None, **settings):
    folder = sweep(**settings)
    if change is not None:
      change(folder)
    write_report(folder)
    return open_page(folder / 'report.html', '#curves svg', width, scheme, has_touch=has_touch)

  return open_report


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
  assert page.locator('#forest .mark').count() == 2
  assert page.locator('#scatter .mark').count() == 2
  assert page.locator('#section-curves .legend button').all_text_contents() == [
    'vanilla',
    'rezero',
    'relu',
  ]
  page.locator('#verdict').select_option('hurts')
  assert variants(page) == ['rezero']
  page.locator('#filter').fill('')
  page.locator('#verdict').select_option('diverged')
  assert variants(page) == ['fixup']


def test_hovering_a_curve_shows_its_run(visit):
  page = visit()
  page.locator('#curves svg').scroll_into_view_if_needed()
  box = page.locator('#curves svg').bounding_box()
  tips = set()
  for part in (0.2, 0.6, 0.8):
    for y in range(40, int(box['height']) - 40, 6):
      page.mouse.move(box['x'] + part * box['width'], box['y'] + y)
      tips.update(page.locator('#curves .tip').all_inner_texts())
  assert any(re.match(r'geglu\nseed \d\nloss \d\.\d+\nstep \d+', tip) for tip in tips)
  assert any('seed 0, diverged' in tip for tip in tips)
  page.mouse.move(5, 5)
  assert page.locator('#curves .tip').count() == 0


def test_touching_a_difference_shows_its_interval(visit):
  page = visit()
  page.locator('#forest .mark').first.click()
  text = page.locator('#forest .tip').inner_text()
  assert re.search(
    r'geglu\nloss 2\.\d+, 5 of 5 seeds\ndifference \u22120\.\d+, 95 %: \u22120\.\d+ to', text
  )
  page.locator('#scatter .mark').first.hover()
  assert 'parameters 104.3k' in page.locator('#scatter .tip').inner_text()


def test_touching_a_curve_shows_its_run(visit):
  page = visit(width=375, has_touch=True)
  page.locator('#forest').scroll_into_view_if_needed()
  box = page.locator('#forest .mark').nth(1).bounding_box()
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


def test_curves_start_at_the_left_axis(visit):
  page = visit()
  for axis in ('step', 'flops', 'seconds'):
    page.locator('#curve-x').select_option(axis)
    left = float(page.locator('#curves line.axis').last.get_attribute('x1'))
    paths = page.locator('#curves path[stroke-width="0.75"]').all()
    starts = [float(re.match(r'M([\d.]+)', path.get_attribute('d'))[1]) for path in paths]
    assert len(starts) == 25 and min(starts) == pytest.approx(left, abs=0.1)
  page.locator('#curve-x').select_option('step')
  page.locator('#curve-late').check()
  assert '50' in page.locator('#curves svg text').all_text_contents()


def test_the_legend_chooses_curves(visit):
  effects = {'vanilla': 0.0} | {f'variant {number}': 0.01 * number for number in range(12)}
  page = visit(effects=effects, seeds=2)
  pressed = page.locator('#section-curves .legend button[aria-pressed=true]')
  assert page.locator('#section-curves .legend button').count() == 13
  assert pressed.count() == 6
  lines = page.locator('#curves path[stroke-width="2"]').count()
  page.get_by_role('button', name='variant 11', exact=True).click()
  assert pressed.count() == 7
  assert page.locator('#curves path[stroke-width="2"]').count() == lines + 1
  page.keyboard.press('Enter')
  assert pressed.count() == 6


def test_arrow_keys_move_through_the_marks_of_the_visible_chart(visit):
  page = visit()
  page.locator('#forest').press('ArrowRight')
  assert page.locator('#forest .tip b').inner_text() == 'geglu'
  page.locator('#filter').fill('vanilla')
  page.locator('#forest').press('ArrowRight')
  assert page.locator('#forest').inner_text() == 'No comparison is available yet.'


def test_a_grid_is_shown_whole_or_by_point(visit):
  rate = {'optimizers/LinearDecay.warmup_steps': 1000}
  points = [rate | {'Stack.num_layers': 2}, rate | {'Stack.num_layers': 4}]
  page = visit(width=375, effects={'vanilla': 0.0, 'geglu': -0.12}, seeds=3, points=points)
  assert page.evaluate('document.documentElement.scrollWidth') == 375
  assert len(variants(page)) == 4
  page.locator('#point').select_option('1')
  point = 'num_layers = 4, warmup_steps = 1000'
  assert variants(page) == [f'vanilla ({point})', f'geglu ({point})']


CUT_OFF = '() => [...document.querySelectorAll(".scroll")].filter(one => one.scrollWidth > one.clientWidth + 1).length'


@pytest.mark.parametrize('width', [320, 390, 800])
def test_a_phone_shows_the_page_without_scrolling_sideways(visit, width):
  page = visit(width=width)
  assert page.evaluate('document.documentElement.scrollWidth') <= width
  page.set_viewport_size({'width': 1280, 'height': 800})
  # Drawn anew for the width, 1280 without the margins.
  page.wait_for_selector('#curves svg[viewBox^="0 0 11"]')


def test_a_phone_shows_the_labels_at_the_edges_whole(visit):
  page = visit(width=390)
  # The outermost ticks lie next to the edges.
  row = "{label: 'one', difference: 0.0001, difference_low: -0.0005, difference_high: 0.0005}"
  page.evaluate(
    f"drawForest(byId('forest'), [{row}], {{goal: 'min', axisName: 'difference', lines: () => []}})"
  )
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


def test_a_partial_sweep_is_labelled(visit):
  page = visit(ended=7)
  assert 'Partial report: 7 of 25 trials ended' in page.locator('#progress').inner_text()
  assert page.get_by_text('None.').count() == 1


def test_before_the_first_trial_has_ended(visit):
  page = visit(ended=0)
  assert page.locator('#forest').inner_text() == 'No comparison is available yet.'
  assert page.locator('#verdicts tbody tr').count() == 5


def test_texts_of_users_are_escaped(visit):
  page = visit()
  assert '</script><b>loss</b>' in page.locator('#unfinished').inner_text()
  assert page.locator('#unfinished b').count() == 0


SECTIONS = [
  'Verdicts',
  'Differences from the baseline',
  'Learning curves',
  'Tuning',
  'Stability of the ranking',
  'Comparison with published results',
  'Scaling law',
  'Cost',
  'Diverged and failed',
  'What was matched',
  'Provenance',
]
IMAGE, QUOTES = '<img src=x onerror=alert(1)>', '"&\''
NAMES = {QUOTES: 0.0, IMAGE: -0.12, 'geglu': 0.01, 'fixup': 0.1}


def tuning(rows):
  """`report_data(results)['tuning']` of a sweep with Sweep.tune."""
  values = (3e-4, 1e-3, 3e-3)
  after = (
    'verdict',
    'difference',
    'difference_low',
    'difference_high',
    'p',
    'mean',
    'n',
    'diverged',
  )
  return {
    'seeds': [1000000, 1000001],
    'metric': 'loss',
    'trials': 24,
    'untuned': '12 of 12 trials ended: 12 finished',
    'rows': [
      {
        'variant': row['variant'],
        'label': row['label'],
        'point': row['point'],
        'parameter': 'Cosine.peak',
        'own': 1e-3,
        'chosen': values[number % 3],
        'tuned': f'{values[number % 3]:g}' if number else '0.0003 (1), 0.001 (1)',
        'edge': 'smallest' if number % 3 == 0 else '',
        'note': IMAGE,
        'curve': [
          {'value': value, 'mean': 2.5 - 0.1 * at, 'low': 2.4 - 0.1 * at, 'high': None, 'n': 2,
           'diverged': at, 'failed': 0, 'chosen_by': at}
          for at, value in enumerate(values)
        ],
        'before': None if number == 2 else {name: row[name] for name in after},
        'after': {name: row[name] for name in after},
      }
      for number, row in enumerate(rows)
    ],
  }  # fmt: skip


def law(variant):
  """A scaling law for the page."""
  estimate = Estimate(2.0, 1.9, 2.1)
  sizes = [
    Size(IMAGE, 1e3, 1e6, (3.0, 3.1)),
    Size('b', 1e4, 1e6, (2.9, 2.8)),
    Size('', 1e5, 1e6, used=False),
  ]
  curve = {'name': '', 'x': [1e3, 1e5], 'value': [3.0, 2.0], 'low': [2.9, 1.9], 'high': [3.1, 2.1]}
  return Fit(variant, ('parameters',), 2, [estimate] * 3, sizes, [estimate] * 3, [curve])


@pytest.fixture
def all_sections(monkeypatch, change_plan):
  """`all_sections(folder)` gives a sweep names with markup and all optional sections."""

  def change(folder):
    values = dict(zip(NAMES, (3.0, 1.0, 2.0, 4.0), strict=True))
    published = Published(values=values, goal='min', label=IMAGE, groups={IMAGE: (*NAMES,)})
    change_plan(folder, name=IMAGE, baseline=QUOTES, margin=0.05, published=published)

    def with_sections(results, fits=()):
      data = report_data(results, [law(QUOTES), law('b')])
      versions = data['versions'] | {f'data {"Long" * 20}': 'unknown'}
      return data | {'tuning': tuning(data['rows']), 'versions': versions}

    monkeypatch.setattr(sys.modules['t2x.sweeps.report.page'], 'report_data', with_sections)

  return change


def test_tables_of_the_law_stay_sorted_when_charts_are_drawn_again(visit, all_sections):
  page = visit(change=all_sections, effects=NAMES, diverged=('fixup', 2))
  for name in ('constants', 'sizes'):
    page.locator(f'#{name} th button').first.click()
  page.set_viewport_size({'width': 800, 'height': 800})
  page.wait_for_selector('#scaling svg[viewBox^="0 0 752"]')
  assert page.locator('#constants [aria-sort], #sizes [aria-sort]').count() == 2


def test_all_sections_are_shown_on_a_phone_and_a_desktop_in_light_and_dark(visit, all_sections):
  page = visit(width=390, scheme='dark', change=all_sections, effects=NAMES, diverged=('fixup', 2))
  brightness = {}
  for width, scheme in ((390, 'dark'), (390, 'light'), (1280, 'light'), (1280, 'dark')):
    page.set_viewport_size({'width': width, 'height': 800})
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function(
      'byId("curves").firstChild.viewBox.baseVal.width === byId("curves").clientWidth'
    )
    assert page.evaluate('document.documentElement.scrollWidth') == width
    assert page.locator('h2:visible').all_text_contents() == SECTIONS
    for _ in range(2):  # With and without the details of the tests.
      assert page.evaluate(CUT_OFF) == 0, 'a table is cut off'
      page.locator('#section-verdicts summary').click()
      page.wait_for_timeout(50)
    for figure in page.locator('.figure').all():
      assert figure.locator('svg').get_attribute('aria-label')
      assert figure.locator('.mark, path').count() > 1
    captions = page.locator('figcaption:visible').all_text_contents()
    assert len(captions) == 7 and all(map(str.strip, captions))
    colour = page.evaluate('getComputedStyle(document.body).backgroundColor')
    brightness[scheme] = sum(map(int, re.findall(r'\d+', colour)[:3]))
  assert brightness['dark'] < 120 < 600 < brightness['light']
  assert page.title() == f'{IMAGE}: sweep report'
  assert page.locator('img').count() == 0
  for place in (
    '#verdicts',
    '#tuned',
    '#agreements',
    '#sizes',
    '#section-curves .legend',
    '#forest svg',
  ):
    assert IMAGE in page.locator(place).text_content(), place
  for figure in ('forest', 'curves', 'sensitivity', 'ranks', 'published', 'scaling', 'scatter'):
    page.locator(f'#{figure}').focus()
    tips = set()
    for _ in range(4):
      page.keyboard.press('ArrowRight')
      tips.add(page.locator(f'#{figure} .tip').inner_text())
    assert any(IMAGE in tip for tip in tips), figure
    page.keyboard.press('Escape')
    assert page.locator(f'#{figure} .tip').count() == 0


def test_a_click_on_a_curve_selects_its_variant(visit):
  effects = {'vanilla': 0.0} | {f'variant {number}': 0.1 * number for number in range(12)}
  page = visit(effects=effects, seeds=2)
  page.locator('#curves svg').scroll_into_view_if_needed()
  lit, faint = page.locator('#curves path.mean'), page.locator('#curves path.context')
  assert (lit.count(), faint.count()) == (6, 7)
  box = page.locator('#curves svg').bounding_box()
  end = faint.first.evaluate('path => { const p = path.getPointAtLength(1e9); return [p.x, p.y]; }')
  page.mouse.click(box['x'] + end[0], box['y'] + end[1])
  assert (lit.count(), faint.count()) == (7, 6)
  baseline = page.get_by_role('button', name='vanilla', exact=True)
  assert baseline.is_disabled() and baseline.get_attribute('aria-pressed') == 'true'


def test_a_printed_page_has_the_definitions_and_fits_the_paper(visit):
  page = visit()
  page.evaluate('dispatchEvent(new Event("beforeprint"))')
  page.emulate_media(media='print')
  assert page.get_by_text('The two-way model estimates a noise variance').is_visible()
  assert not page.locator('.bar').is_visible()
  assert page.locator('#curves svg').bounding_box()['width'] < 700
  page.evaluate('dispatchEvent(new Event("afterprint"))')


LONG = 'a variant whose name is long'


@pytest.mark.parametrize(
  ('width', 'cells'), [(390, 'td.helps, td.inconclusive'), (1280, 'td.long')]
)
def test_verdicts_are_in_view_on_a_phone_and_notes_on_a_laptop(visit, width, cells):
  page = visit(
    width, effects={'vanilla': 0.0, LONG: -0.12, 'x': 0.0}, diverged=(LONG, 1), failed=('x', 0)
  )
  boxes = [cell.bounding_box() for cell in page.locator(f'#verdicts :is({cells})').all()]
  assert boxes and all(box['x'] + box['width'] <= width for box in boxes)
  for row in page.locator('#verdicts tbody tr').all():
    name, verdict = (row.locator('td').nth(index).bounding_box() for index in (0, 1))
    assert verdict['y'] < name['y'] + name['height'] + 4


def test_the_details_of_the_tests_are_folded(visit):
  page = visit()
  place = page.locator('#tests')
  assert not place.is_visible() and not page.locator('#method').is_visible()
  page.locator('#section-verdicts summary').click()
  assert place.locator('th').all_inner_texts()[1:3] == ['p', 'p (two-way model)']
  assert page.locator('#method').inner_text().startswith('Verdicts: paired t tests')
