"""Published results in sweep files: names are checked, settings without effect are refused."""

import pytest

from t2x.base.errors import UserError
from t2x.sweeps.published import published_results
from t2x.sweeps.sweep import read_sweep

VARIANTS = dict.fromkeys(('vanilla', 'gelu', 'geglu', 'rezero'))
VALUES = {'vanilla': 2.18, 'gelu': 2.17, 'geglu': 2.13}


def test_published_results_are_checked_and_completed():
  found = published_results(VALUES, 'min', '', {'all': ['vanilla', 'gelu', 'geglu']}, VARIANTS)
  assert found.values == VALUES and found.label == 'published result'
  assert found.groups == {'all': ('vanilla', 'gelu', 'geglu')}
  assert published_results({}, None, '', {}, VARIANTS) is None


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    (
      {'values': VALUES | {'gegluu': 2.0}},
      "'gegluu', which is not in Sweep.variants; did you mean 'geglu'",
    ),
    ({'values': {'gelu': 2.0, 'geglu': 2.1}}, 'has 2 of the 3 variants'),
    ({'goal': None}, 'Sweep.published needs Sweep.published_goal'),
    ({'values': {}}, 'Sweep.published_goal has no effect without Sweep.published'),
    ({'values': {}, 'goal': None, 'label': 'x'}, 'Sweep.published_label has no effect'),
    ({'values': {}, 'goal': None, 'groups': {'a': ['gelu']}}, 'Sweep.groups has no effect'),
    ({'groups': {'a': ['gelu', 'geglu', 'rezero']}}, "'rezero', which is not in Sweep.published"),
    ({'groups': {'a': ['gelu', 'gelu', 'geglu']}}, 'contains a variant twice'),
    ({'groups': {'a': ['gelu']}}, 'has 1 of the 3 variants'),
    ({'label': 'a\x1b[31m'}, 'control characters'),
  ],
)
def test_invalid_settings_are_refused(settings, message):
  values = {'values': VALUES, 'goal': 'min', 'label': '', 'groups': {}} | settings
  with pytest.raises(UserError) as error:
    published_results(*values.values(), VARIANTS)
  assert message in str(error.value)


def test_a_sweep_file_gives_published_results(sweep_file):
  extra = "  published = {'gelu': 1.0, 'relu': 2, 'gated': 0.5}\n  published_goal = 'min'\n"
  assert read_sweep(sweep_file(extra=extra)).published_results().values['relu'] == 2.0
  with pytest.raises(UserError, match=r"study\.gin: Sweep\.published contains 'glu'"):
    read_sweep(sweep_file(extra=extra.replace("'gated'", "'glu'")))
  with pytest.raises(UserError, match=r'Sweep\.published'):
    read_sweep(sweep_file(extra=extra.replace('0.5', "'low'")))
