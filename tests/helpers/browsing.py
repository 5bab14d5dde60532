"""Fixtures of tests in a browser, which need Playwright (the extra `docs`) and a chromium, such as Debian's package.

A test module imports `browser` and `open_page`; without one of the two its tests are skipped.
"""

import os
import shutil

import pytest

sync_api = pytest.importorskip('playwright.sync_api', reason="the extra 'docs' is not installed")
CHROMIUM = os.environ.get('CHROMIUM') or shutil.which('chromium') or shutil.which('google-chrome')
NEEDS_CHROMIUM = pytest.mark.skipif(not CHROMIUM, reason='no chromium: apt-get install chromium')


@pytest.fixture(scope='module')
def browser():
  with sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=['--no-sandbox'])
    yield browser
    browser.close()


@pytest.fixture
def open_page(browser):
  """`open_page(path, ready, width, scheme)`: a page once the selector `ready` is there; errors and requests are
  failures."""
  contexts, wrong = [], []

  def open_file(path, ready, width=1280, scheme='light', **settings):
    view = {'width': width, 'height': 800}
    context = browser.new_context(viewport=view, color_scheme=scheme, **settings)
    contexts.append(context)
    page = context.new_page()
    page.on('console', lambda message: wrong.append(message.text))
    page.on('pageerror', lambda error: wrong.append(str(error)))
    address = path.as_uri()
    page.on('request', lambda request: request.url == address or wrong.append(request.url))
    page.goto(address)
    page.wait_for_selector(ready)
    return page

  yield open_file
  for context in contexts:
    context.close()
  assert [one for one in wrong if not one.startswith('data:')] == []
