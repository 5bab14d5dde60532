"""Causal language modelling: prediction of the next token (GPT)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t2x.base.errors import UserError
from t2x.base.ranges import Size, Text, TunableNonNegative
from t2x.data import ConcatenateAndSplit, DocumentPlan, Source, Tokenizer
from t2x.decode import Generated, Sampling, Strategy
from t2x.layers.constraints import constrain
from t2x.models import Output, TextModel
from t2x.tasks.base import Task
from t2x.tasks.distillation import TeacherLoss
from t2x.tasks.evaluators import Evaluation, TaskEvaluator
from t2x.tasks.marks import MarkRule
from t2x.tasks.text import TextTask, answers, check_shapes, continued, in_training

__all__ = ['CausalLM', 'Samples']

# Number of characters whose tokens are decoded again, to notice tokenizers that change the text.
DECODED = 1 << 22


def shift_right(tokens: jax.Array, segments: jax.Array, bos_id: int) -> jax.Array:
  """Returns the model inputs that predict `tokens`: each segment shifted by one, starting with `bos_id`."""
  before = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=bos_id)
  same = jnp.pad(segments[:, :-1] == segments[:, 1:], ((0, 0), (1, 0)))
  return jnp.where(same, before, bos_id)


def preserves_texts(source: Source, split: str, tokenizer: Tokenizer) -> bool:
  """Returns whether the first `DECODED` characters of a split are the text of their tokens."""
  remaining = DECODED
  for example in source.load(split):
    if tokenizer.decode(tokenizer.encode(example['text'])) != example['text']:
      return False
    remaining -= len(example['text'])
    if remaining < 0:
      break
  return True


def _logits(model, x):
  return constrain(model.logits(x), 'batch', 'length', 'vocab')


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalLM(TextTask):
  """Predicts the next token of documents that are packed into rows of `length` tokens.

  Every token, including the end of a document, is a target exactly once, so `bits_per_byte` covers the
  full split. It is not computed if the tokenizer does not preserve the text (unknown characters, lower case).

  Attributes:
    length: tokens per row.
    packing: the packing of documents, called with the tokens per row. `ConcatenateAndSplit` and
      `BestFitDocuments` hide the documents of a row from each other. With `FullRows` and `RestartPositions`
      tokens attend to earlier documents of their row; an incomplete last row is dropped, and then
      `bits_per_byte` is not computed.
    marks: rules by the names of the marks that they set. `{'starts': @MarkStarts()}` marks the starts of lines, which
      the pattern `Marked('starts')` of a block then makes global. Marks are computed from the ids that the model gets,
      also in generation.
    z_loss: coefficient of logsumexp(logits)^2, added to the loss of each token in training only (PaLM,
      https://arxiv.org/abs/2204.02311, uses 1e-4).
    distillation: the teacher's term, `Distillation` or `HardDistillation`; None without a teacher.
    strategy: decoding strategy of `generate` if the caller sets none.

  Raises:
    UserError: `pieces` is set and rows are one segment without padding.
  """

  length: Size
  packing: Callable[..., DocumentPlan] = ConcatenateAndSplit
  marks: Mapping[str, MarkRule] = dataclasses.field(default_factory=dict)
  z_loss: TunableNonNegative = 0.0
  distillation: TeacherLoss | None = None
  strategy: Strategy = Sampling(temperature=0.8, top_k=40)

  learns_from_teacher: ClassVar[bool] = True
  answers_prompts: ClassVar[bool] = True
  predicts_next: ClassVar[bool] = True
  is_causal: ClassVar[bool] = True
  data_fields: ClassVar[frozenset[str]] = TextTask.data_fields | {'strategy'}

  def transform(self, *, train):
    """Returns the transform that samples segmentations, if `pieces` is set."""
    return self.resegment({'tokens': self.length}, train)

  def spec(self, batch_size):
    """tokens, segments, positions: int32 [batch, length]."""
    shape = jax.ShapeDtypeStruct((batch_size, self.length), jnp.int32)
    return {'tokens': shape, 'segments': shape, 'positions': shape}

  def hidden(
    self, model: TextModel, batch: Mapping[str, jax.Array], key: jax.Array | None
  ) -> Output:
    """Returns the model's output with the hidden vectors of the rows, of which number i predicts token i."""
    inputs = shift_right(batch['tokens'], batch['segments'], self.tokenizer.ids.bos_id)
    return model.hidden(inputs, tokens=self.row_tokens(batch, inputs), key=key)

  def predictions(self, model, batch, key):
    out = self.hidden(model, batch, key)
    return _logits(model, out.x), out

  def sums(self, model, batch, key, teacher=None):
    """Returns loss and accuracy of the next token, over the tokens that are not padding."""
    out = self.hidden(model, batch, key)
    z_loss = in_training(key, self.z_loss)
    sums = model.cross_entropy(out.x, batch['tokens'], self.weighted_targets(batch), z_loss=z_loss)
    output = self.with_auxiliaries(sums, model, out, batch, key)
    return (
      output
      if teacher is None
      else self.distilled(output, _logits(model, out.x), out.x, teacher, batch)
    )

  def summarise(self, means, info=None):
    """Returns loss, accuracy and perplexity; with `info` of a full split also bits_per_byte."""
    metrics = super().summarise(means, info)
    # A subclass may give tokens another weight.
    whole = info and info.get('bytes') and means['loss'][1] == info.get('tokens')
    if info and whole and not (info.get('cut_tokens') or self._loses_text(info)):
      metrics['bits_per_byte'] = means['loss'][0] / np.log(2.0) / info['bytes']
    return metrics

  @functools.cached_property
  def _preserved(self) -> dict[str, bool]:
    """Whether the tokenizer preserves the texts of a split, by split."""
    return {}

  def _loses_text(self, info: Mapping[str, Any]) -> bool:
    """Returns whether the tokenizer does not preserve the texts of a split."""
    split = info.get('split')
    if info.get('lossy_texts') or split is None:
      return bool(info.get('lossy_texts'))
    if split not in self._preserved:
      self._preserved[split] = preserves_texts(self.source, split, self.fitted)
    return not self._preserved[split]

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Continues each prompt; an empty prompt starts a new document."""
    settings = {'strategy': strategy, 'max_new_tokens': max_new_tokens, 'num_return': num_return}
    return answers(self._generate(model, prompts, seed, **settings), self.fitted)

  def _generate(self, model, prompts, seed=0, **settings) -> Generated:
    rows = [self.fitted.prompt(prompt) for prompt in prompts]
    return continued(model, rows, self.fitted, seed=seed, marks=self.token_marks, **settings)

  def check_generate(
    self, model: nnx.Module, prompts: Sequence[str], strategy: Strategy, max_new_tokens: int
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples(TaskEvaluator):
  """Generates continuations of prompts, for human inspection; computes no metrics.

  Attributes:
    prompts: the prompts.
    num_tokens: maximum number of tokens of a continuation.
    strategy: decoding strategy; None: the task's.
  """

  prompts: Sequence[Text]
  num_tokens: Size = 64
  strategy: Strategy | None = None

  fixed = frozenset({'split', 'num_examples'})
  kinds: ClassVar[tuple[type[Task], ...]] = (CausalLM,)

  def __post_init__(self):
    if self.split is not None or self.num_examples is not None:
      raise UserError('Samples reads only its prompts: leave out Samples.split and num_examples')

  def check(self, task, model):
    """Also raises UserError if the model cannot continue the prompts."""
    super().check(task, model)
    task.check_generate(model, self.prompts, self.strategy or task.strategy, self.num_tokens)

  def __call__(self, evaluated):
    """Returns the continuations; the random seed is the same in every evaluation."""
    task, samples = evaluated.task, []
    strategy = self.strategy or task.strategy
    for prompts in evaluated.watched([self.prompts]):
      answers = task.generate(
        evaluated.model(), prompts, strategy=strategy, max_new_tokens=self.num_tokens
      )
      samples += [
        {'prompt': prompt, 'output': answer[0]['text']}
        for prompt, answer in zip(prompts, answers, strict=True)
      ]
    return Evaluation({}, samples)
