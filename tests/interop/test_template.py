"""Templates are filled in with values, and the same values are read back from the model."""

import importlib

import pytest
import tiny_models

from t2x import layers
from t2x.interop.template import GinReference, fill, has_option, is_part, read_back, write

MODULE = 't2x.layers.feed_forward.activations'

DECODER = """
Experiment.model = @LanguageModel
LanguageModel:
  d_model = {width}
  embedding = @TokenEmbedding
  body = @Decoder
  head = {head}
TokenEmbedding.vocab_size = {words}
Decoder:
  stack = @Stack
  final_norm = @LayerNorm
Stack:
  num_layers = {layers}
  blocks = {blocks}
Block:
  mixer = @MultiHeadAttention
  feed_forward = @MLP
  wiring = @PreNorm
PreNorm:
  norm = @LayerNorm
  dropout_rate = {dropout}
LayerNorm.epsilon = {epsilon}
MultiHeadAttention:
  num_heads = {heads}
  use_bias = {bias}
MLP:
  hidden_dim = {hidden}
  activation = {function}
"""
VALUES = {
  'width': 8,
  'head': GinReference('LMHead'),
  'words': 20,
  'layers': 4,
  'blocks': [GinReference('Block'), GinReference('Block')],
  'dropout': 0.25,
  'epsilon': 1e-3,
  'heads': 2,
  'bias': False,
  'hidden': 12,
  'function': GinReference('relu'),
}


def model(template, values):
  return tiny_models.shapes(write(template, values))


def test_values_are_read_back_from_the_model():
  found = read_back(DECODER, model(DECODER, VALUES))
  assert type(found.pop('head')).__name__ == 'LMHead'
  assert [type(block).__name__ for block in found.pop('blocks')] == ['Block', 'Block']
  assert found.pop('function').__name__ == 'relu'
  assert found == {name: value for name, value in VALUES.items() if name in found}
  assert len(found) == len(VALUES) - 3


SIDES = """
Experiment.model = @EncoderDecoder
EncoderDecoder:
  d_model = {width}
  embedding = @TokenEmbedding
  encoder = @Encoder
  decoder = @Decoder
TokenEmbedding.vocab_size = {words}
Encoder.stack = @Stack
Decoder.stack = @decoder/Stack
Stack:
  num_layers = {layers}
  blocks = [@Block]
decoder/Stack.num_layers = {decoder_layers}
Block:
  mixer = @MultiHeadAttention
  feed_forward = @MLP
decoder/Block.cross = @MultiHeadAttention
MultiHeadAttention.num_heads = {heads}
decoder/MultiHeadAttention.num_heads = {decoder_heads}
MLP.hidden_dim = {hidden}
"""


def test_a_binding_of_a_scope_replaces_the_one_without():
  values = {'width': 8, 'words': 20, 'layers': 1, 'decoder_layers': 2, 'heads': 2, 'hidden': 12}
  values['decoder_heads'] = 4
  assert read_back(SIDES, model(SIDES, values)) == values


def test_an_option_holds_if_the_model_has_its_parts():
  decoder = model(DECODER, VALUES)
  assert has_option(DECODER, 'MultiHeadAttention.out_bias = True\n', decoder)
  assert not has_option(DECODER, 'MultiHeadAttention.out_bias = False\n', decoder)
  assert has_option(DECODER, 'Decoder.final_norm = @LayerNorm\n', decoder)
  assert not has_option(DECODER, 'Decoder.final_norm = @RMSNorm\n', decoder)
  assert not has_option(DECODER, 'Decoder.final_norm = None\n', decoder)
  assert not has_option(DECODER, 'Decoder.encoding = @RoPE\nRoPE.base = {base}\n', decoder)
  assert not has_option(DECODER, 'Nowhere.norm = @LayerNorm\n', decoder)
  assert has_option(DECODER, '', decoder)
  assert has_option('', DECODER, decoder)
  assert not has_option('', DECODER.replace('Decoder', 'Encoder'), decoder)


def test_other_names_and_values_are_filled_in():
  template = 'A.a = {a}\nB.b = {b}\nC.c = {c}\nD.d = {d}\n'
  filled = fill(template, a='other', b=1e-5, c=GinReference('scope/Part'))
  assert filled == 'A.a = {other}\nB.b = 1e-05\nC.c = @scope/Part\nD.d = {d}\n'


def test_blocks_are_read_in_the_scope_whose_bindings_they_match():
  more = """
local/Block.pattern = @Window()
Window.size = {window}
local/MLP.hidden_dim = {narrow}
"""
  blocks = [GinReference('local/Block'), GinReference('Block')]
  values = VALUES | {'blocks': blocks, 'window': 3, 'narrow': 5}
  built = model(DECODER + more, values)
  found = read_back(DECODER + more, built)
  assert (found['window'], found['narrow'], found['hidden']) == (3, 5, 12)
  assert has_option(DECODER, more, built)
  assert not has_option(DECODER, more, model(DECODER, VALUES))


def test_wirings_of_a_mapping_are_matched_by_sublayer():
  more = """
first/Block.wiring = {
  'mixer': @NoNorm, 'feed_forward': @PreNorm
}
"""
  blocks = [GinReference('first/Block'), GinReference('Block')]
  built = model(DECODER + more, VALUES | {'blocks': blocks})
  assert has_option(DECODER, more, built)
  assert not has_option(DECODER, more, model(DECODER, VALUES))


@pytest.mark.parametrize('name', ['silu', 'relu', 'gelu_exact'])
def test_a_function_is_recognised_before_its_name_was_used(name):
  """The package imports its modules when their names are first used."""
  vars(layers).pop(name, None)
  assert is_part(getattr(importlib.import_module(MODULE), name), name)
  assert not is_part(getattr(importlib.import_module(MODULE), name), 'Decoder')
