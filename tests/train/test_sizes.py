"""Tables of tokens take their size from the task's tokenizer where the config leaves it open."""

import functools
import json

import jax
import pytest
from fake_models import spec
from flax import nnx

from t2x.base.errors import UserError
from t2x.cli import main
from t2x.data import Bytes, Characters, TextFiles
from t2x.layers import FactorisedEmbedding, TokenEmbedding
from t2x.tasks import CausalLM, MaskedLM, SpanCorruption
from t2x.train import Experiment

CONFIG = """
include '{models}/small_decoder.gin'
d_model = 16
num_layers = 1
MLP.hidden_dim = 16
TokenEmbedding.vocab_size = None
Experiment.task = @CausalLM()
CausalLM:
  source = @TextFiles()
  tokenizer = @Characters()
  length = 16
TextFiles:
  train = '{text}'
  validation = '{text}'
Experiment.trainer = @Trainer()
Trainer:
  num_steps = 1
  batch_size = 2
"""


class Model(nnx.Module):
  """A table of tokens."""

  def __init__(self, embedding, *, rngs):
    self.embedding = embedding(4, rngs=rngs)
    self.spec = nnx.static(spec(vocab_size=self.embedding.vocab_size))


@pytest.fixture
def text(tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path / 'cache'))
  (tmp_path / 'text.txt').write_text('abcd ' * 50)
  return tmp_path / 'text.txt'


@pytest.mark.parametrize(
  'embedding', [TokenEmbedding, functools.partial(FactorisedEmbedding, factor_dim=2)]
)
@pytest.mark.parametrize(
  ('task', 'rows'),
  [
    (functools.partial(CausalLM, tokenizer=Bytes(), length=8), 261),
    (functools.partial(MaskedLM, tokenizer=Characters(), length=16), 10),
    (functools.partial(MaskedLM, tokenizer=Characters(vocab_size=8), length=16), 8),
    (functools.partial(SpanCorruption, tokenizer=Characters(), source_length=16, num_sentinels=7), 17),
    (
      functools.partial(
        SpanCorruption, tokenizer=Bytes(), source_length=16, num_sentinels=4, first_sentinel=299
      ),
      300,
    ),
  ],
)  # fmt: skip
def test_the_table_has_a_row_for_each_id_of_the_task(embedding, task, rows, text):
  made = task(source=TextFiles(train=str(text)))
  experiment = Experiment(model=functools.partial(Model, embedding), task=made).bound()
  model = jax.eval_shape(lambda: experiment.model(rngs=nnx.Rngs(0)))
  assert model.embedding.vocab_size == model.embedding.table.shape[0] == rows
  assert experiment.task.vocab_size == rows


def test_without_a_task_the_size_must_be_set():
  with pytest.raises(
    UserError, match=r'TokenEmbedding\.vocab_size is not set, and no task with a tokenizer'
  ):
    TokenEmbedding(4, rngs=nnx.Rngs(0))


def test_a_run_takes_its_size_from_its_own_tokenizer(text, tmp_path, capsys):
  configs = __file__.split('/tests/')[0] + '/configs'
  file, run = tmp_path / 'own.gin', tmp_path / 'run'
  file.write_text(CONFIG.format(models=f'{configs}/models', text=text))
  assert main(['check', str(file)]) == 2
  assert 'run `t2x data tokenizer` with this config first' in capsys.readouterr().err
  assert main(['train', str(file), '--out', str(run)]) == 0
  assert main(['check', str(file)]) == 0
  # The same with what the run folder alone knows.
  text.write_text('abcdefgh ' * 50)
  capsys.readouterr()
  assert main(['eval', str(run), '--json']) == 0
  told = json.loads(capsys.readouterr().out)
  assert told['step'] == 1
