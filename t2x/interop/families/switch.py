"""Switch Transformers, encoder-decoders with experts: `SwitchTransformersForConditionalGeneration`."""

from collections.abc import Iterator
from typing import Any

from t2x.base.external_files import Bool, Choice, Fields, Float, Int, Only
from t2x.interop.families.t5 import TEMPLATE, side_rules
from t2x.interop.family import Family, Layers, activation, only, positive, rates, sizes
from t2x.interop.layouts import LINEAR
from t2x.interop.rules import Rule, attention, norm

EXPERTS = """
EncoderDecoder.head = @TiedHead
TiedHead.scaled = True
Block.feed_forward = @MLP
encoder_sparse/Block.feed_forward = @MixtureOfExperts
decoder_sparse/Block.feed_forward = @MixtureOfExperts
decoder_sparse/Block.cross = @MultiHeadAttention
MixtureOfExperts:
  num_experts = {num_experts}
  expert = @MLP
  router = @TopK
  dispatch = @Capacity()
TopK:
  k = 1
  normalise = False
  jitter = {router_jitter_noise}
  balance = {router_aux_loss_coef}
  losses = [@ZLoss()]
ZLoss.coefficient = {router_z_loss_coef}
Capacity:
  factor = None
  slots = {expert_capacity}
MLP:
  hidden_dim = {d_ff}
  activation = {dense_act_fn}
  use_bias = False
  dropout_rate = {dropout_rate}
"""
STACKS = TEMPLATE.replace('stack = @Stack', 'stack = @encoder/Stack')
for line in ('  blocks = [@Block]\n', 'decoder/Block.cross = @MultiHeadAttention\n'):
  STACKS = STACKS.replace(line, '')
# Experts are in the second of each `step` layers.
STEPS = (1, 2, 3, 4, 6)


def _blocks(side: str) -> dict[int, str]:
  """Returns the blocks of a side for each step."""
  texts = {}
  for step in STEPS:
    blocks = ['@Block'] * step
    blocks[min(1, step - 1)] = f'@{side}_sparse/Block'
    texts[step] = f'{side}/Stack.blocks = [{", ".join(blocks)}]\n'
    if side == 'decoder' and step > 1:
      texts[step] += 'decoder/Block.cross = @MultiHeadAttention\n'
  return texts


def _derive(fields: Fields) -> dict[str, Any]:
  """Returns the number of decoder layers, and the distance of layers with experts on each side,
  as transformers computes it."""
  layers = {
    'encoder': fields['num_layers'],
    'decoder': fields['num_decoder_layers'] or fields['num_layers'],
  }
  steps = {}
  for side, number in layers.items():
    name, key = f'num_sparse_{side}_layers', f'{side}_sparse_step'
    steps[key] = number // fields[name]
    if steps[key] not in STEPS or number % steps[key]:
      raise fields.refused(name, fields[name], f'{number} divided by one of {STEPS}')
    if fields[key] not in (None, steps[key]):
      raise fields.refused(key, fields[key], f'{steps[key]} with this {name}')
  return {**steps, 'num_decoder_layers': layers['decoder']}


def _restore(values: dict[str, Any]) -> dict[str, Any]:
  """Adds the numbers of layers with experts."""
  numbers = {'encoder': values['num_layers'], 'decoder': values['num_decoder_layers']}
  return values | {
    f'num_sparse_{side}_layers': number // values[f'{side}_sparse_step']
    for side, number in numbers.items()
  }


def _side(side: str, last: int) -> Iterator[Rule]:
  """The rules of the encoder or decoder; `last` is the number of the feed-forward sublayer."""
  yield from side_rules(side, last, ('mlp.wi', 'mlp.wo'))
  mixture = f'{side}.block.{{}}.layer.{last}.mlp'
  experts = f'{side}.stack.{{}}.feed_forward'
  yield Rule(f'{mixture}.router.classifier.weight', (f'{experts}.router.kernel',), LINEAR)
  for name, part in (('wi', 'up'), ('wo', 'down')):
    parameter = f'{experts}.expert.{part}.kernel.{{}}'
    yield Rule(f'{mixture}.experts.expert_{{}}.{name}.weight', (parameter,), LINEAR)


SWITCH = Family(
  model_type='switch_transformers',
  architectures=('SwitchTransformersForConditionalGeneration',),
  template=STACKS + EXPERTS,
  choices={f'{side}_sparse_step': _blocks(side) for side in ('encoder', 'decoder')},
  derive=_derive,
  restore=_restore,
  declared={
    **rates(dropout_rate=0.1, router_jitter_noise=0.01),
    **sizes(d_ff=2048, d_kv=64, d_model=768, expert_capacity=64, num_experts=8, num_heads=12),
    **sizes(num_sparse_decoder_layers=3, num_sparse_encoder_layers=3, vocab_size=32128),
    **sizes(relative_attention_num_buckets=32),
    **only(False, 'router_bias'),
    'decoder_sparse_step': Int(None, 1),
    'dense_act_fn': activation('relu'),
    'encoder_sparse_step': Int(None, 1),
    'feed_forward_proj': Choice('relu', ('relu',)),
    'is_encoder_decoder': Only(True),
    'is_gated_act': Bool(None),
    'layer_norm_epsilon': positive(1e-6, 1.0),
    'num_decoder_layers': Layers(12),
    'num_layers': Layers(12),
    'relative_attention_max_distance': Int(128, 1),
    'router_aux_loss_coef': Float(0.001, 0.0),
    'router_type': Only('tokens_masked'),
    'router_z_loss_coef': Float(0.001, 0.0),
    'tie_word_embeddings': Only(True),
  },
  # Padding at the end of a row takes no slot of a token.
  no_effect=('add_router_probs', 'n_positions', 'router_dtype', 'router_ignore_padding_tokens'),
  rules=(
    Rule('shared.weight', ('embedding.table',)),
    *_side('encoder', 1),
    *_side('decoder', 2),
    *norm('decoder.block.{}.layer.1.layer_norm', 'decoder.stack.{}.cross_wiring.norm'),
    *attention('decoder.block.{}.layer.1.EncDecAttention', 'decoder.stack.{}.cross', 'qkvo'),
  ),
  ignored=(
    r'(encoder|decoder)\.embed_tokens\.weight',
    r'lm_head\.weight',
    r'decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight',
  ),
)
