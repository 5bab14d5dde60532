"""Causal language modelling: prediction of the next token (GPT)."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from t2x.decode import Generated, Sampling, Strategy
from t2x.layers.constraints import constrain
from t2x.tasks.base import TaskOutput
from t2x.tasks.distillation import DistillableTask
from t2x.tasks.text import JoinedDocuments, answers, check_causal, check_shapes, continued

__all__ = ['CausalLM']


def shift_right(tokens: jax.Array, segments: jax.Array, bos_id: int) -> jax.Array:
  """Returns the model inputs that predict `tokens`: each segment shifted by one, starting with `bos_id`."""
  before = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=bos_id)
  same = jnp.pad(segments[:, :-1] == segments[:, 1:], ((0, 0), (1, 0)))
  return jnp.where(same, before, bos_id)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalLM(DistillableTask, JoinedDocuments):
  """Predicts the next token of documents that are packed into rows of `length` tokens.

  Every token, including the end of a document, is a target exactly once, so `bits_per_byte` covers the
  full split. It is not computed if the tokenizer does not preserve the text (unknown characters, lower case).

  Attributes:
    length: tokens per row.
    packing: the packing of documents, called with the tokens per row. `ConcatenateAndSplit` and
      `BestFitDocuments` hide the documents of a row from each other. With `FullRows` and `RestartPositions`
      tokens attend to earlier documents of their row; an incomplete last row is dropped, and then
      `bits_per_byte` is not computed.
    strategy: decoding strategy of `generate` if the caller sets none.
  """

  strategy: Strategy = Sampling(temperature=0.8, top_k=40)

  answers_prompts: ClassVar[bool] = True
  data_fields: ClassVar[frozenset[str]] = JoinedDocuments.data_fields | {'strategy'}

  @property
  def default_strategy(self):
    """The `strategy` of the config."""
    return self.strategy

  def transform(self, *, train):
    """Returns the transform that samples segmentations, if `pieces` is set."""
    return self.resegment({'tokens': self.length}, train)

  def spec(self, batch_size):
    """tokens, segments, positions: int32 [batch, length]."""
    shape = jax.ShapeDtypeStruct((batch_size, self.length), jnp.int32)
    return {'tokens': shape, 'segments': shape, 'positions': shape}

  def check_model(self, model):
    """Also raises UserError if a block attends to later tokens."""
    super().check_model(model)
    check_causal(model, self.length, 'CausalLM', self.marks)

  def target_weights(self, batch):
    """Returns weight 1 for each token that is not padding."""
    return (batch['segments'] != 0).astype(jnp.float32)

  def _hidden(self, model, batch, key):
    inputs = shift_right(batch['tokens'], batch['segments'], self.tokenizer.ids.bos_id)
    return model.hidden(inputs, tokens=self.row_tokens(batch, inputs), key=key)

  def predictions(self, model, batch, key):
    """Returns the logits of each token."""
    out = self._hidden(model, batch, key)
    return constrain(model.logits(out.x), 'batch', 'length', 'vocab'), out

  def sums(self, model, batch, key, teacher=None):
    """Returns loss and accuracy over the tokens that are not padding."""
    out = self._hidden(model, batch, key)
    output = TaskOutput(self.token_sums(model, out.x, batch['tokens'], batch, key), out.aux)
    if teacher is None:
      return output
    logits = constrain(model.logits(out.x), 'batch', 'length', 'vocab')
    return self.distilled(output, logits, self.weighted_targets(batch), teacher, batch)

  def summarise(self, means, info=None):
    """Returns loss, accuracy and perplexity; with `info` of a full split also bits_per_byte."""
    metrics = super().summarise(means, info)
    if info and info.get('bytes') and not (info.get('cut_tokens') or info.get('lossy_texts')):
      metrics['bits_per_byte'] = means['loss'][0] / np.log(2.0) / info['bytes']
    return metrics

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Continues each prompt; an empty prompt starts a new document."""
    settings = {'strategy': strategy, 'max_new_tokens': max_new_tokens, 'num_return': num_return}
    return answers(self._generate(model, prompts, seed, **settings), self.fitted)

  def _generate(self, model, prompts, seed=0, **settings) -> Generated:
    rows = [self.fitted.prompt(prompt) for prompt in prompts]
    return continued(model, rows, self.fitted, seed=seed, marks=self.token_marks, **settings)

  def check_generate(
    self, model: Any, prompts: Sequence[str], strategy: Strategy, max_new_tokens: int
  ) -> None:
    """Raises UserError if the model cannot continue the prompts, e.g. for lack of positions.

    Args:
      model: the model's shapes.
      prompts: the prompts.
      strategy: decoding strategy.
      max_new_tokens: number of tokens to generate.
    """
    settings = {'strategy': strategy, 'max_new_tokens': max_new_tokens}
    check_shapes(lambda m: self._generate(m, prompts, **settings), model)
