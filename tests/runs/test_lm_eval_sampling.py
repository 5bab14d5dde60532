"""Sampled requests of lm-evaluation-harness, with stubs of its modules."""

import importlib
import sys
import types

import jax
import pytest

from t2x.base.errors import UserError
from t2x.data import Bytes
from t2x.decode import Greedy, Sampling
from t2x.decode.sampling import prompt_keys


@pytest.fixture
def lm_eval(monkeypatch):
  """t2x.runs.lm_eval, imported with stubs."""

  def module(name, **values):
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(**values))

  module('lm_eval.api.model', TemplateLM=object)
  module('lm_eval.api.registry', register_model=lambda _: lambda cls: cls)
  module('lm_eval.models.utils', normalize_gen_kwargs=lambda settings, _: settings)
  module('lm_eval.utils', get_rolling_token_windows=None, make_disjoint_window=None)
  for name in ('lm_eval', 'lm_eval.api', 'lm_eval.models'):
    module(name)
  monkeypatch.delitem(sys.modules, 't2x.runs.lm_eval', raising=False)
  yield importlib.import_module('t2x.runs.lm_eval')
  sys.modules.pop('t2x.runs.lm_eval', None)


@pytest.mark.parametrize('batch_size', [1, 3, 8])
def test_repeated_requests_get_a_key_each_whatever_the_batch_size(lm_eval, monkeypatch, batch_size):
  model = lm_eval.T2XModel.__new__(lm_eval.T2XModel)
  model.__dict__ |= {'batch_size': batch_size, 'max_length': 64, '_model': None, '_marks': None}
  model.__dict__ |= {
    '_tokenizer': Bytes().train(()),
    'cache_hook': types.SimpleNamespace(add_partial=lambda *_: None),
  }

  def continued(_, rows, tokenizer, *, seed, **settings):
    return [jax.random.key_data(key).tolist() for key in prompt_keys(seed, len(rows))]

  monkeypatch.setattr(lm_eval, 'continued', continued)
  monkeypatch.setattr(lm_eval, 'answers', lambda keys, _: [[{'text': str(key)}] for key in keys])
  settings = {'until': ['x'], 'max_gen_toks': 4, 'do_sample': True, 'temperature': 1.0}
  requests = [types.SimpleNamespace(args=('a', settings)) for _ in range(8)]
  outputs = model.generate_until(requests)
  assert outputs == [str(key) for key in jax.random.key_data(prompt_keys(0, 8)).tolist()]
  assert len(set(outputs)) == 8


def test_a_temperature_of_0_is_not_sampled(lm_eval):
  with pytest.raises(UserError, match=r'do_sample = True with temperature = 0\.0'):
    lm_eval.strategy_of({'do_sample': True, 'temperature': 0.0}, ())
  assert lm_eval.strategy_of({'do_sample': True}, ()) == Sampling(1.0)
  assert lm_eval.strategy_of({'do_sample': True, 'temperature': 0.7}, ()) == Sampling(0.7)
  assert lm_eval.strategy_of({'do_sample': False, 'temperature': 0.0}, ()) == Greedy()
