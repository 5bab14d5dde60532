"""Causal language modelling: the next token from those before it (GPT)."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from t2x.decode import Generated, Sampling, Strategy, generate
from t2x.layers.constraints import constrain
from t2x.tasks.base import TaskOutput, check_causal
from t2x.tasks.distillation import DistillableTask
from t2x.tasks.text import JoinedDocuments, answers, check_shapes, pad_prompts


def shift_right(tokens: jax.Array, segments: jax.Array, bos_id: int) -> jax.Array:
  """What the model reads to predict `tokens`: each segment moved by one, `bos_id` first."""
  before = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=bos_id)
  same = jnp.pad(segments[:, :-1] == segments[:, 1:], ((0, 0), (1, 0)))
  return jnp.where(same, before, bos_id)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalLM(DistillableTask, JoinedDocuments):
  """Documents joined and cut into rows of `length` tokens; no token sees another document.

  Every token, the end of the document included, is a target exactly once, so that
  `bits_per_byte` is the cost of the whole split.

  Attributes:
    length: tokens a row.
    separate_documents: False lets tokens see earlier documents of their row. Rows are then one segment and
      always full: the tokens of an incomplete last row are left out, and with them `bits_per_byte`.
    strategy: how the tokens of a continuation are chosen, unless the caller says.
  """

  strategy: Strategy = Sampling(temperature=0.8, top_k=40)

  answers_prompts: ClassVar[bool] = True

  @property
  def default_strategy(self):
    """The config's."""
    return self.strategy

  def transform(self, *, train):
    """Other pieces, where they are drawn."""
    return self.resegment({'tokens': self.length}, train)

  def spec(self, batch_size):
    """tokens, segments, positions: int32 [batch, length]."""
    shape = jax.ShapeDtypeStruct((batch_size, self.length), jnp.int32)
    return {'tokens': shape, 'segments': shape, 'positions': shape}

  def check_model(self, model):
    """No block may see a later token."""
    super().check_model(model)
    check_causal(model, self.length, 'CausalLM')

  def target_weights(self, batch):
    """1 for each token that is not padding."""
    return (batch['segments'] != 0).astype(jnp.float32)

  def _hidden(self, model, batch, key):
    inputs = shift_right(batch['tokens'], batch['segments'], self.tokenizer.ids.bos_id)
    return model.hidden(inputs, tokens=self.row_tokens(batch), key=key)

  def predictions(self, model, batch, key):
    """The logits of each token."""
    out = self._hidden(model, batch, key)
    return constrain(model.logits(out.x), 'batch', 'length', 'vocab'), out

  def sums(self, model, batch, key, teacher=None):
    """Loss and accuracy of each token that is not padding."""
    out = self._hidden(model, batch, key)
    output = TaskOutput(self.token_sums(model, out.x, batch['tokens'], batch, key), out.aux)
    if teacher is None:
      return output
    logits = constrain(model.logits(out.x), 'batch', 'length', 'vocab')
    return self.distilled(output, logits, self.target_weights(batch), teacher, batch)

  def summarise(self, means, info=None):
    """loss, accuracy, perplexity; with a whole split's `info`, bits_per_byte."""
    metrics = super().summarise(means, info)
    if info and info.get('bytes') and not info.get('cut_tokens'):
      metrics['bits_per_byte'] = means['loss'][0] / np.log(2.0) / info['bytes']
    return metrics

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Continues each prompt; an empty one starts a document."""
    settings = {'strategy': strategy, 'max_new_tokens': max_new_tokens, 'num_return': num_return}
    return answers(self._generated(model, prompts, seed, **settings), self.fitted)

  def _generated(self, model, prompts, seed=0, **settings) -> Generated:
    tokenizer = self.fitted
    ids, lengths = pad_prompts([tokenizer.prompt(prompt) for prompt in prompts], tokenizer.pad_id)
    return generate(
      model,
      ids,
      lengths,
      eos_id=tokenizer.eos_id,
      pad_id=tokenizer.pad_id,
      key=jax.random.key(seed),
      **settings,
    )

  def check_generate(
    self, model: Any, prompts: Sequence[str], strategy: Strategy, max_new_tokens: int
  ) -> None:
    """Raises UserError if a model of these shapes cannot continue the prompts."""
    settings = {'strategy': strategy, 'max_new_tokens': max_new_tokens}
    check_shapes(lambda m: self._generated(m, prompts, **settings), model)
