"""Run by test_entries.py in a process of its own, with eight fake devices: what runs a model, on several
devices and on one.

python entries.py run      prints the largest difference of each entry, and how often it used the layout
python entries.py lower    prints the kernels in the program of each entry, lowered for TPUs and GPUs
"""

import functools
import json
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from t2x.base.step import in_step
from t2x.data import Bytes
from t2x.decode import Beam, Greedy, Sampling, generate, generation
from t2x.decode.sampling import prompt_keys
from t2x.layers import (
  MLP,
  Dropless,
  Full,
  GatedMLP,
  LearnedPositions,
  MixtureOfExperts,
  MultiHeadAttention,
  TokenEmbedding,
  Window,
)
from t2x.layers.marks import Marks
from t2x.look.anatomy import sides
from t2x.look.lens import logit_lens, masked_logits
from t2x.models import Block, Decoder, Encoder, LanguageModel, Stack
from t2x.parallel import Activations, Mesh, Placed, module_of, runs_model, state_shardings
from t2x.prune.heads import row_losses
from t2x.tasks import fill_mask, inspection, likelihoods
from t2x.tasks.prediction import predict
from t2x.train.params import Blueprint

LENGTH, ROWS = 1024, 8
MESHES = (
  {'data': 4, 'expert': 2},
  {'expert': 4, 'context': 2},
  {'fsdp': 2, 'expert': 2, 'tensor': 2},
)


def model_of(body, width=32, heads=4, feed_forward=None):
  """A language model of experts, one of whose layers has a window."""
  experts = functools.partial(
    MixtureOfExperts,
    num_experts=8,
    expert=functools.partial(GatedMLP, hidden_dim=16),
    dispatch=Dropless(),
  )
  block = functools.partial(
    Block,
    mixer=functools.partial(MultiHeadAttention, num_heads=heads),
    feed_forward=feed_forward or experts,
  )
  blocks = [block, functools.partial(block, pattern=Window(5) if body is Decoder else Full())]
  stack = functools.partial(Stack, num_layers=2, blocks=blocks)
  build = functools.partial(
    LanguageModel,
    d_model=width,
    embedding=functools.partial(TokenEmbedding, vocab_size=264),
    body=functools.partial(
      body, stack=stack, encoding=functools.partial(LearnedPositions, max_length=LENGTH + 64)
    ),
  )
  return build(rngs=nnx.Rngs(0))


def placed_on(model, sizes):
  """The model on the devices of a mesh."""
  settings = Mesh(**({'data': 1} | sizes))
  mesh, blueprint = settings.build(), Blueprint(jax.eval_shape(lambda: model))
  params = blueprint.params(model)
  shardings = state_shardings(mesh, settings.rules, blueprint.infos, params)
  return Placed(blueprint.model(jax.device_put(params, shardings)), Activations.of(mesh, settings))


def entries():
  """What runs a model, by name: functions of a causal and of a bidirectional model that return arrays."""
  rng = np.random.default_rng(0)
  ids, lengths = rng.integers(5, 250, (3, 9)).astype(np.int32), np.array([9, 4, 6], np.int32)
  pairs = [([7, 8, 9], [10, 11]), ([5] * 6, [9]), ([12], [13, 14, 15])]
  tokenizer = Bytes().fit([])
  settings = {'max_new_tokens': 4, 'eos_id': None, 'pad_id': 0}

  def hidden(model, batch):
    return model.hidden(batch['ids']).x

  def predicted(causal, _):
    rows = [{'ids': row} for row in rng.integers(5, 250, (5, 16)).astype(np.int32)]
    return [output for _, output in predict(causal, rows, None, hidden, 8)]

  def scored(causal, _):
    results = likelihoods.log_likelihoods(causal, pairs, pad_id=0, batch_size=3)
    return [np.array([one.log_prob, one.greedy]) for one in results]

  def filled(_, bidirectional):
    answers = fill_mask.fill_masks(bidirectional, tokenizer, ['ab<mask>', '<mask>de'], 3)
    return [np.array([m['probability'] for m in answer['masks'][0]]) for answer in answers]

  def inspected(causal, _):
    inspected = inspection.Inspection(causal, None)
    record = frozenset({'hidden', 'probabilities', 'load'})
    logits, recorded = inspected.outputs(ids, record=record)
    return [logits, *(recorded[name] for name in sorted(recorded))]

  def generated(strategy, causal, _):
    key = prompt_keys(0, len(ids)) if strategy.random else None
    result = generate(causal, ids, lengths, strategy=strategy, key=key, **settings)
    return [np.asarray(result.tokens), np.asarray(result.log_probs)]

  def lens(causal, _):
    layers = inspection.Inspection(causal, None).layers('hidden', ids)
    side = sides(causal)['']
    return [logit_lens(causal, side, [x[0] for x in layers], [''] * 9, [''] * 9, str).probabilities]

  def masked(_, bidirectional):
    return [masked_logits(bidirectional, ids[0], np.arange(5), 3)]

  def lost(causal, _):
    module, layout = module_of(causal), getattr(causal, 'layout', None)
    blueprint = Blueprint(jax.eval_shape(lambda: module))

    def sums(model, batch, key):
      loss = jnp.square(model.hidden(batch['ids'], key=key).x).mean()
      return types.SimpleNamespace(metrics={'loss': (loss, jnp.float32(1))})

    run = jax.jit(functools.partial(row_losses, sums, blueprint, layout=layout))
    return run(blueprint.params(module), {'ids': ids})

  def called(causal, _):
    rows = np.repeat(ids, 8, axis=0)[:8, :8]
    return [causal(rows).x, runs_model(lambda model: model.hidden(rows).x)(causal)]

  return {
    'predict': predicted,
    'likelihoods': scored,
    'fill_masks': filled,
    'inspection': inspected,
    'greedy generation': functools.partial(generated, Greedy()),
    'beam search': functools.partial(generated, Beam(2)),
    'sampling': functools.partial(generated, Sampling()),
    'logit lens': lens,
    'masked logits': masked,
    'losses of pruning': lost,
    'calls of the model': called,
  }


def run():
  models = model_of(Decoder), model_of(Encoder)
  constrain, found = Activations.constrain, {}
  for sizes in MESHES:
    placed = [placed_on(model, sizes) for model in models]
    for (name, on_one), on_many in zip(entries().items(), entries().values(), strict=True):
      calls = []

      def counted(layout, x, axes, calls=calls):
        calls.append(axes)
        return constrain(layout, x, axes)

      expected = on_one(*models)
      Activations.constrain = counted
      results = on_many(*placed)
      Activations.constrain = constrain
      differences = [
        float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())
        for a, b in zip(results, expected, strict=True)
      ]
      assert [np.shape(a) for a in results] == [np.shape(b) for b in expected], name
      found[f'{name}, {sizes}'] = max(differences), len(calls)
  return found


def programs(placed, bidirectional):
  """The compiled functions of what runs a model, with the shapes of rows of `LENGTH` tokens."""
  ids = np.zeros((ROWS, LENGTH), np.int32)
  numbers, few = np.zeros(ROWS, np.int32), np.zeros((ROWS, 8), np.int32)
  batch = {'tokens': ids, 'segments': np.ones_like(ids), 'types': np.zeros_like(ids)}

  def hidden(model, batch):
    return model.hidden(batch['tokens']).x

  settings = {
    'max_new_tokens': 4,
    'strategy': Greedy(),
    'num_return': 1,
    'eos_ids': (),
    'pad_id': 0,
    'cache_dtype': None,
    'marks': Marks(),
  }
  arguments = numbers + LENGTH - 4, numbers + 4, None, {}, None
  return {
    'predict': (jax.jit(runs_model(hidden)), (placed, batch), {}),
    'likelihoods': (
      likelihoods._score,
      (placed, ids, numbers, numbers, few, few),
      {'further': Marks()},
    ),
    'inspection': (
      inspection._text_outputs,
      (placed, ids, np.ones_like(ids)),
      {'record': frozenset(), 'marks': Marks()},
    ),
    'fill_masks': (fill_mask._log_probs, (bidirectional, batch, few), {'marks': Marks()}),
    'generation': (generation._run, (placed, ids, *arguments), settings),
  }


def in_bfloat16(placed):
  def narrow(a):
    return jax.ShapeDtypeStruct(a.shape, jnp.bfloat16, sharding=a.sharding)

  return jax.tree.map(narrow, placed)


def lower():
  # cuDNN asks for the GPU of this machine.
  cudnn.check_cudnn_version, cudnn.check_compute_capability = lambda: 91000, lambda _: True
  found = {}
  for platform, target in (('tpu', 'tpu'), ('cuda', 'gpu')):
    mlp = functools.partial(MLP, hidden_dim=64)
    models = [model_of(body, 256, 4, mlp) for body in (Decoder, Encoder)]
    placed = [in_bfloat16(placed_on(model, {'data': 4, 'tensor': 2})) for model in models]
    for name, (function, arguments, settings) in programs(*placed).items():
      jax.clear_caches()
      with in_step(target=target):
        traced = function.trace(*arguments, **settings)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
      # The compiler gets cuDNN's attention as a call that it splits itself.
      is_split = '@CustomSPMDPartitioning' in text
      names = re.findall(r'splash_mha_[a-z]+', text)
      names += re.findall(r'dot_product_attention_fwd_wrapper', str(traced.jaxpr)) * is_split
      found[f'{name}, {platform}'] = sorted(set(names))
  return found


if __name__ == '__main__':
  print(json.dumps({'run': run, 'lower': lower}[sys.argv[1]]()))
