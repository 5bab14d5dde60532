"""Tasks take the special ids of the tokenizer at hand, whatever they are."""

import hub_folders
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_source
from fake_models import WithLogits, spec

from t2x.base.errors import UserError
from t2x.data import BPE, Batches, HubTokenizer, SampledPieces, Source
from t2x.decode import Generated, Greedy
from t2x.models import Output
from t2x.tasks import CausalLM, MaskedLM, Translation, encoder_decoder

VOCAB = 500


class Texts(tiny_source.Texts, Source):
  """A source as tasks want it."""


class Listening(WithLogits):
  """Keeps what it is given to read."""

  spec = spec(vocab_size=VOCAB)

  def hidden(self, *ids, **known):
    self.heard = [np.asarray(side) for side in ids]
    return Output(jnp.zeros((*ids[-1].shape, 4)))

  def logits(self, x):
    return jnp.zeros((*x.shape[:-1], VOCAB))


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  root = tmp_path_factory.mktemp('hub')
  return {name: hub_folders.make(root / name, name) for name in ('bert', 'gpt2', 'bart', 'marian')}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('T2X_CACHE', str(tmp_path))


@pytest.fixture
def task_of(folders):
  def make(kind, family, **settings):
    size = 356 if family == 'marian' else VOCAB
    config = HubTokenizer(folder=str(folders[family]), vocab_size=size)
    return kind(source=Texts(), eval_split='train', tokenizer=config, **settings)

  return make


def heard(task, tokenizer):
  """A batch, and what a model reads of it."""
  task = task.bound(tokenizer)
  transform = task.transform(train=True)
  batch = Batches(task.rows('train'), transform, batch_size=4, seed=0)[0]
  assert {name: value.shape for name, value in batch.items()} == {
    name: spec.shape for name, spec in task.spec(4).items()
  }
  model = Listening()
  task.sums(model, {k: jnp.asarray(v) for k, v in batch.items()}, None)
  return batch, model.heard


@pytest.mark.parametrize('family', ['bart', 'gpt2', 'bert'])
def test_a_causal_model_reads_bos_first(task_of, family):
  task = task_of(CausalLM, family, length=24)
  tokenizer = task.fit_tokenizer()
  batch, (inputs,) = heard(task, tokenizer)
  first = np.diff(batch['segments'], axis=1, prepend=0) > 0
  assert (inputs[first] == tokenizer.bos_id).all()
  assert (inputs[:, 1:][~first[:, 1:]] == batch['tokens'][:, :-1][~first[:, 1:]]).all()
  last = first[:, 1:] & (batch['segments'][:, 1:] > 0)
  assert (batch['tokens'][:, :-1][last] == tokenizer.eos_id).all()


@pytest.mark.parametrize(('family', 'before', 'start'), [('bart', [0], 2), ('marian', [], 355)])
def test_a_translation_has_the_special_ids_of_the_model(task_of, family, before, start):
  task = task_of(Translation, family, source_length=60, target_length=60)
  tokenizer = task.fit_tokenizer()
  batch, (source, inputs) = heard(task, tokenizer)
  examples = [Texts().load('train')[i] for i in range(60)]
  sides = {'source': tokenizer, 'target': tokenizer.target}
  told = [
    [[*before, *side.encode(example[name]), tokenizer.eos_id] for name, side in sides.items()]
    for example in examples
  ]
  for row in range(4):
    for number in range(1, batch['source_segments'][row].max() + 1):
      here = batch['target_segments'][row] == number
      ids = source[row][batch['source_segments'][row] == number].tolist()
      target = batch['target'][row][here].tolist()
      assert [ids, target] in told
      assert inputs[row][here].tolist() == [start, *target[:-1]]


def test_a_translation_is_begun_as_the_model_wants_it(task_of, monkeypatch):
  task = task_of(Translation, 'bart', source_length=8, target_length=8)
  tokenizer = task.fit_tokenizer()
  given = {}

  def generate(model, prompts, lengths, **known):
    given.update(known, prompts=prompts, lengths=lengths)
    tokens = jnp.array([[[*tokenizer.encode(' Hello')[:1], 2]]] * 2)
    zeros = jnp.zeros(tokens.shape)
    one = zeros[..., 0]
    return Generated(tokens, jnp.full((2, 1), 2), zeros, one, one)

  monkeypatch.setattr(encoder_decoder, 'generate', generate)
  prompts = ['3', 'number ' * 9]
  answers = task.bound(tokenizer).generate(None, prompts, strategy=Greedy(), max_new_tokens=4)
  assert given['prompts'].tolist() == [[2, 0]] * 2 and given['lengths'].tolist() == [2, 2]
  assert (given['eos_id'], given['pad_id']) == (2, 1)
  for row, prompt in enumerate(prompts):
    ids = given['source'][row][given['source_tokens'].segments[row] > 0].tolist()
    assert ids == [0, *tokenizer.encode(prompt)[:6], 2]
  assert set(given['source'][0][given['source_tokens'].segments[0] == 0]) == {1}
  assert answers[0][0]['text'] == tokenizer.decode(tokenizer.encode(' Hello')[:1])


def test_masks_are_the_models_own(task_of):
  task = task_of(MaskedLM, 'bert', length=32, rate=0.5, random_rate=0.2)
  tokenizer = task.fit_tokenizer()
  task = task.bound(tokenizer)
  rows, change = task.rows('train'), task.transform(train=True)
  drawn = [change(rows[i], np.random.default_rng(i)) for i in range(len(rows))]
  labels = np.concatenate([row['labels'][row['weights'] > 0] for row in drawn])
  assert not tokenizer.special[labels].any()
  seen = np.concatenate(
    [row['tokens'][row['masked_positions'][row['weights'] > 0]] for row in drawn]
  )
  assert np.mean(seen == tokenizer.mask_id) == pytest.approx(0.8, abs=0.1)
  assert not tokenizer.special[seen[seen != tokenizer.mask_id]].any()
  causal = task_of(MaskedLM, 'gpt2', length=32)
  with pytest.raises(UserError, match='need a tokenizer with a mask token'):
    causal.bound(causal.fit_tokenizer()).transform(train=True)


@pytest.mark.parametrize(
  ('kind', 'settings'),
  [
    (CausalLM, {'length': 24}),
    (MaskedLM, {'length': 24}),
    (Translation, {'source_length': 40, 'target_length': 30}),
  ],
)
def test_pieces_are_drawn_only_in_training(kind, settings):
  pieces = SampledPieces(rate=0.5, room=1.5)
  known = {'source': Texts(), 'eval_split': 'train', 'tokenizer': BPE(300)}
  tokenizer = BPE(300).train(hub_folders.lines())
  task, plain = (
    kind(**known, **settings, pieces=given).bound(tokenizer) for given in (pieces, None)
  )
  batches = {}
  for train in (True, False):
    rows = (task if train else plain).rows('train')
    batches[train] = Batches(rows, task.transform(train=train), batch_size=4, seed=0)[0]
    told = {name: value.shape for name, value in batches[train].items()}
    assert told == {name: spec.shape for name, spec in task.spec(4).items()}
  column = 'source' if kind is Translation else 'tokens'
  rows, change = task.rows('train'), task.transform(train=True)
  first, second = (change(rows[0], np.random.default_rng(i))[column].tolist() for i in (1, 2))
  assert first != second
