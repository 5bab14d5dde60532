"""The page of `t2x look` in a browser."""

import pytest
from browsing import NEEDS_CHROMIUM, browser, open_page  # noqa: F401 (fixtures)

from t2x.look import Look
from t2x.look.page import page

pytestmark = NEEDS_CHROMIUM


@pytest.fixture
def visit(open_page, look, tmp_path):  # noqa: F811
  """`visit(width, scheme)`: the page of the look."""
  path = tmp_path / 'look.html'
  path.write_text(page(look, 'x', {}), 'utf-8')
  return lambda *args: open_page(path, 'body[data-ready]', *args)


def test_hovering_shows_the_share_of_an_expert(open_page, loads, tmp_path):  # noqa: F811
  path = tmp_path / 'loads.html'
  path.write_text(page(Look(loads=loads), 'x', {}), 'utf-8')
  section = open_page(path, 'body[data-ready]').locator('section')
  assert section.locator('h3').all_inner_texts() == ['Layer 2', 'Layer 4']
  assert '0.75 of the group' in section.locator('.scale').inner_text()
  figure = section.locator('.figure').nth(1)
  # The last row, the second of three columns.
  shown = tooltip(section.page, figure, 0.7, 0.95)
  assert shown == ['</script> \u2192 expert 1', '0.75']


def tooltip(page, figure, x, y):
  """Text of the tooltip at a share of the canvas."""
  canvas = figure.locator('canvas').first
  canvas.scroll_into_view_if_needed()
  box = canvas.bounding_box()
  page.mouse.move(box['x'] + x * box['width'], box['y'] + y * box['height'])
  return figure.locator('.tip').inner_text().split('\n')


def test_hovering_shows_the_weight_of_a_head_and_of_the_mean(visit):
  page = visit(390, 'dark')
  cross = page.locator('section').nth(0)
  figure = cross.locator('.figure')
  assert cross.locator('h3').inner_text() == 'Layer 1, mean over heads'
  # The last query and key.
  assert tooltip(page, figure, 0.98, 0.97) == ['</script>$ \u2192 </s>', '0.375']
  cross.get_by_role('button', name='layer 1, head 2').click()
  assert tooltip(page, figure, 0.98, 0.97)[1] == '0.75'
  assert page.evaluate('document.documentElement.scrollWidth') == 390


def test_a_heat_map_has_a_colour_scale(visit):
  cross = visit(390, 'dark').locator('section').nth(0)
  cross.get_by_role('button', name='layer 1, head 2').click()
  scale = cross.locator('.figure .scale')
  low, high = scale.inner_text().split()
  assert (low, high) == ('0', '0.75')
  row = 'one => [...one.getContext("2d").getImageData(0, 0, 100, 1).data]'
  colours = scale.locator('canvas').evaluate(row)
  assert len(colours) == 400 and colours[:4] != colours[-4:]


def test_a_click_on_a_patch_chooses_the_query_of_the_picture(visit):
  page = visit(1280, 'light')
  patches = page.locator('section').nth(1)
  picture, query = patches.locator('.figure').nth(0), patches.get_by_label('Query')
  assert query.locator('option:checked').inner_text() == 'class token'
  assert tooltip(page, picture, 0.1, 0.1) == ['top left', '1']
  assert tooltip(page, picture, 0.9, 0.9) == ['bottom right', '0']
  query.select_option('mean over queries')
  assert tooltip(page, picture, 0.9, 0.9) == ['bottom right', '0.8']
  tooltip(page, picture, 0.9, 0.1)
  page.mouse.down()
  page.mouse.up()
  assert query.locator('option:checked').inner_text() == 'top right'
  assert tooltip(page, picture, 0.9, 0.9) == ['bottom right', '1']
