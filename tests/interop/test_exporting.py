"""A model is exported as a family only if all its modules are those of the family."""

import json
import sys

import jax
import numpy as np
import pytest
import tiny_models
from flax import nnx

from t2x.base.errors import UserError
from t2x.experiments import read_config
from t2x.interop import FAMILIES, export
from t2x.layers.arrays import named_leaves

PARTS = """
import dataclasses
import jax
from t2x import layers, models

class Loud(layers.Dense):
  def __call__(self, *args, **kwargs):
    return 2 * super().__call__(*args, **kwargs)

class Quiet(layers.MultiHeadAttention):
  def __call__(self, *args, **kwargs):
    return super().__call__(*args, **kwargs)

class Same(layers.MultiHeadAttention):
  pass

def gelu(x):
  return jax.nn.gelu(x, approximate=False)

class Twice(models.Block):
  def __call__(self, *args, **kwargs):
    return super().__call__(*args, **kwargs)

class Norm(layers.LayerNorm):
  pass

class Wiring(layers.PreNorm):
  pass

class Positions(layers.LearnedPositions):
  pass

class Head(models.TiedHead):
  pass

class Embedding(layers.TokenEmbedding):
  pass

class Body(models.Decoder):
  pass

class Layers(models.Stack):
  pass

class Whole(models.LanguageModel):
  pass

@dataclasses.dataclass(frozen=True)
class Past(layers.Causal):
  def __eq__(self, other):
    return True

  def __hash__(self):
    return 0
"""


@pytest.fixture(scope='module')
def changed(tmp_path_factory):
  """`changed(old, new)`: the shapes of a tiny GPT-2 with `old` replaced by `new` in its config."""
  folder = tmp_path_factory.mktemp('parts')
  (folder / 'my_export_parts.py').write_text(PARTS)
  sys.path.append(str(folder))
  family = FAMILIES['gpt2']
  gin = family.gin(family.read(tiny_models.CONFIGS['gpt2'], 'config.json'))
  gin = gin.replace('@gelu', '@t2x.layers.gelu')  # There is another one.

  def make(old='', new='', extra=''):
    assert old in gin
    file = folder / 'x.gin'
    file.write_text('import my_export_parts\n' + gin.replace(old, new) + extra)
    build = read_config([file]).build().model
    return jax.eval_shape(lambda: build(rngs=nnx.Rngs(0)))

  yield make
  sys.path.remove(str(folder))


def exported(model, folder):
  family = export(
    model, tiny_models.build, folder, lambda name: np.zeros(dict(named_leaves(model))[name].shape)
  )
  assert json.loads((folder / 'config.json').read_text())['model_type'] == family.model_type
  return family.model_type


def test_the_familys_own_parts_are_exported(changed, tmp_path):
  assert exported(changed('', ''), tmp_path / 'back') == 'gpt2'


@pytest.mark.parametrize('kernel', ['Auto', 'Blockwise', 'Dense', 'PallasMHA', 'Splash', 'XLA'])
def test_our_own_kernels_are_alike(kernel, changed, tmp_path):
  model = changed(extra=f'MultiHeadAttention.kernel = @{kernel}()\n')
  assert exported(model, tmp_path / 'back') == 'gpt2'


def test_a_loss_in_chunks_is_exported(changed, tmp_path):
  assert exported(changed(extra='TiedHead.chunk = 4\n'), tmp_path / 'back') == 'gpt2'


def test_padding_of_the_vocabulary_is_not_exported(changed, tmp_path):
  plain, padded = changed(), changed(extra='TokenEmbedding.vocab_multiple = 128\n')
  values = {
    name: np.random.default_rng(0).normal(size=leaf.shape).astype(np.float32)
    for name, leaf in named_leaves(padded)
  }
  vocab = plain.spec.vocab_size
  assert len(values['embedding.table']) % 128 == 0 != vocab % 128
  for folder, model in (('padded', padded), ('plain', plain)):
    given = (
      values if model is padded else values | {'embedding.table': values['embedding.table'][:vocab]}
    )
    assert (
      export(model, tiny_models.build, tmp_path / folder, given.__getitem__).model_type == 'gpt2'
    )
  names = sorted(file.name for file in (tmp_path / 'plain').iterdir())
  assert len(names) >= 2
  for name in names:
    assert (tmp_path / 'padded' / name).read_bytes() == (tmp_path / 'plain' / name).read_bytes()


OTHERS = {
  'a kernel': ('', '', 'MultiHeadAttention.kernel = @Loud()\n'),
  'an attention': ('MultiHeadAttention', 'Quiet', ''),
  'an attention that overrides nothing': ('MultiHeadAttention', 'Same', ''),
  'an activation of the same name': ('@t2x.layers.gelu', '@my_export_parts.gelu', ''),
  'a block': ('Block', 'Twice', ''),
  'a norm': ('LayerNorm', 'Norm', ''),
  'a wiring': ('PreNorm', 'Wiring', ''),
  'an encoding': ('LearnedPositions', 'Positions', ''),
  'a head': ('TiedHead', 'Head', ''),
  'an embedding': ('TokenEmbedding', 'Embedding', ''),
  'a body': ('Decoder', 'Body', ''),
  'a stack': ('Stack', 'Layers', ''),
  'a model': ('LanguageModel', 'Whole', ''),
  'a pattern': ('', '', 'Decoder.pattern = @Past()\n'),
  'a pattern of t2x': ('', '', 'Decoder.pattern = @Window()\nWindow.size = 3\n'),
  'a gate of the heads': ('', '', 'MultiHeadAttention.head_outputs = @GatedHeads\n'),
  'a norm of hidden features': ('', '', 'MLP.norm = @LayerNorm\n'),
  'a tied head with a scale': ('', '', 'TiedHead.scaled = True\n'),
}


@pytest.mark.parametrize('change', OTHERS.values(), ids=OTHERS)
def test_a_part_that_the_family_lacks_is_refused(change, changed, tmp_path):
  model = changed(*change)
  for model_type in (None, 'gpt2'):
    with pytest.raises(UserError, match=r'^the model cannot be exported'):
      export(model, tiny_models.build, tmp_path / 'back', np.zeros, model_type)
  assert not (tmp_path / 'back').exists()


@pytest.mark.parametrize(
  ('change', 'told'),
  [
    (
      OTHERS['a kernel'],
      'body.stack.blocks.0.mixer.kernel: expected a kernel of t2x, got my_export_parts.Loud',
    ),
    (
      OTHERS['an attention'],
      'body.stack.blocks.0.mixer: expected t2x.layers.attention.multi_head.MultiHeadAttention, '
      'got my_export_parts.Quiet',
    ),
    (
      OTHERS['a model'],
      'the model: expected t2x.models.language_model.LanguageModel, got my_export_parts.Whole',
    ),
    (
      OTHERS['a pattern'],
      'body.pattern: expected t2x.layers.patterns.algebra.Causal, got my_export_parts.Past',
    ),
  ],
)
def test_the_error_names_the_part_and_its_class(change, told, changed, tmp_path):
  with pytest.raises(UserError) as caught:
    export(changed(*change), tiny_models.build, tmp_path / 'back', np.zeros)
  assert told in str(caught.value)
