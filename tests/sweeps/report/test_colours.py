"""Contrast of the colours of report.html (WCAG 2.1, success criteria 1.4.3 and 1.4.11)."""

import re
from importlib import resources

import pytest

TEXT = ('ink', 'soft', 'help', 'hurt', 'same', 'none')
LINES = ('c0', 'c1', 'c2', 'c3', 'c4', 'c5', 'focus')


def schemes():
  css = resources.files('t2x.base').joinpath('page.css').read_text()
  light, dark = re.findall(r':root \{(.*?)\}', css, re.DOTALL)
  return {
    name: dict(re.findall(r'--(\w+): (#\w+);', block))
    for name, block in (('light', light), ('dark', dark))
  }


def luminance(colour):
  digits = colour[1:] if len(colour) == 7 else ''.join(2 * digit for digit in colour[1:])
  channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
  linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
  return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first, second):
  dark, light = sorted(map(luminance, (first, second)))
  return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_text_and_lines_have_enough_contrast(scheme):
  colours = schemes()[scheme]
  for name in TEXT:
    for background in ('paper', 'raised'):
      assert contrast(colours[name], colours[background]) >= 4.5, (name, background)
  for name in LINES:
    assert contrast(colours[name], colours['paper']) >= 3, name


def test_contrast_matches_the_standard():
  assert contrast('#000', '#ffffff') == pytest.approx(21)
  assert contrast('#777777', '#ffffff') == pytest.approx(4.48, abs=0.01)
