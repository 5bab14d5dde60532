"""Base classes and helpers of text tasks: token rows, prediction of tokens, packed documents, prompts and answers."""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t2x.base.errors import UserError
from t2x.base.hyperparameters import Tunable
from t2x.base.names import missing
from t2x.base.ranges import Text
from t2x.data import (
  Chain,
  DocumentPlan,
  SampledPieces,
  Tokenizer,
  TokenizerConfig,
  token_rows,
)
from t2x.data.batches import Transform
from t2x.data.tokenizers.existing import Fitted, NoTokenizer
from t2x.decode import Generated, generate
from t2x.decode.sampling import SampleSeed, prompt_keys
from t2x.layers import Causal, RowLayout, Tokens
from t2x.layers.marks import Marks
from t2x.models import DecodingModel, Model, Output, TextModel
from t2x.models.losses import Sums
from t2x.parallel.placed import Placed
from t2x.tasks.auxiliary import Auxiliary, check_auxiliaries, with_auxiliaries
from t2x.tasks.base import Task
from t2x.tasks.dropped_pairs import NO_LIMIT, dropped_pairs, note_dropped
from t2x.tasks.former import BASES
from t2x.tasks.losses import present_tokens
from t2x.tasks.marks import NO_RULES, check_marks, marks_of
from t2x.tasks.output import TaskOutput

__all__ = ['TextTask']

if not TYPE_CHECKING:  # Type checkers would accept every name.
  __getattr__ = missing(__name__, BASES)


def check_causal(model: Model, length: int, task: str, marks: Collection[str] = ()) -> None:
  """Raises UserError if a block of the model attends to later tokens.

  Args:
    model: the model or its shapes.
    length: number of predicted tokens per row.
    task: name of the task, for the message.
    marks: names of the marks that any token may have.
  """
  for pattern in model.spec.patterns:
    if not pattern.is_causal(length, marks):
      raise UserError(
        f'{task} predicts the next token, but the attention pattern {pattern} attends to later tokens: '
        f'use {Causal() & pattern} (Decoder.pattern = @Causal() and the other pattern as Block.pattern)'
      )


@runtime_checkable
class PackedTask(Protocol):
  """A task over documents that a setting packs into rows.

  Attributes:
    packing: the packing of documents, called with the tokens per row.
    length: tokens per row.
  """

  packing: Callable[..., DocumentPlan]
  length: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTask(Task):
  """A task over token rows.

  Attributes:
    tokenizer: the tokenizer's settings; by default the tokenizer of the run folder, for generation.
    pieces: samples another segmentation of the training text in each epoch; None: always the same.
    auxiliaries: further objectives on the same rows, by the name of their loss term.
  """

  tokenizer: TokenizerConfig = NoTokenizer()
  pieces: SampledPieces | None = None
  auxiliaries: Mapping[Text, Auxiliary] = dataclasses.field(default_factory=dict)

  # The values of settings that a task may have: rules that mark tokens, and the share of the pairs of a split that may
  # be dropped as too long.
  marks = NO_RULES
  max_dropped = NO_LIMIT
  # The column of the segments of the predicted tokens. Each that is not padding is a target.
  target_segments: ClassVar[str] = 'segments'
  # Whether a token is predicted from those before it, so that no block may attend to later tokens.
  is_causal: ClassVar[bool] = False
  # Whether the loss is that of tokens, so that its exponential is a perplexity.
  has_perplexity: ClassVar[bool] = True
  tokenizes: ClassVar[bool] = True
  data_fields: ClassVar[frozenset[str]] = Task.data_fields | {'pieces'}

  @property
  def vocab_size(self) -> int | None:
    """Minimum number of rows of the token embedding; None if it depends on the fitted tokenizer."""
    return self.tokenizer.vocab_size

  def is_fitted(self) -> bool:
    """Returns whether the cache holds the trained tokenizer."""
    return self.tokenizer.is_fitted(self.source.fingerprint())

  def fit_tokenizer(self) -> Tokenizer:
    """Returns the tokenizer, trained on the training split at first use and then read from the cache."""
    return self.tokenizer.fit(self.tokenizer_texts, source_fingerprint=self.source.fingerprint())

  def bound(self, tokenizer):
    """Returns the task with the fitted tokenizer in place of the tokenizer's settings."""
    return dataclasses.replace(self, tokenizer=Fitted(tokenizer))

  @property
  def fitted(self) -> Tokenizer:
    """The tokenizer that the task is bound to."""
    if not isinstance(self.tokenizer, Fitted):
      raise UserError(
        f'{type(self).__name__} has no tokenizer yet: shapes are traced before it is trained, so set token ids that a '
        'loss reads as settings (in Python: use task.bound(tokenizer))'
      )
    return self.tokenizer.tokenizer

  def tokenizer_texts(self) -> Iterator[str]:
    """Yields the texts that the tokenizer is trained on."""
    for example in self.source.load(self.train_split):
      yield from self.texts_of(example).values()

  def texts_of(self, example: Mapping[str, Any]) -> dict[str, str]:
    """Returns the texts of an example by field; the tokenizer is trained on them."""
    return {name: example[name] for name in self.text_fields if name in example}

  text_fields: ClassVar[tuple[str, ...]] = ('text',)
  shares_preparation: ClassVar[bool] = True

  def __post_init__(self):
    if self.pieces is not None and self.one_segment:
      name = type(self).__name__
      raise UserError(
        f'{name}.pieces leaves padding in each row, but {name}.packing = @{type(self.plan).__name__} '
        'needs full rows: leave one of them out'
      )

  @property
  def plan(self) -> Any:
    """The packing of tokenised examples into rows of one shape, by default of documents by the settings `packing` and
    `length`; None if examples are prepared when they are read."""
    if not isinstance(self, PackedTask):
      raise TypeError(f'{type(self).__name__} has no settings packing and length: define its plan')
    return self.packing(self.planned(self.length))

  @property
  def one_segment(self) -> bool:
    """Whether every row is one segment without padding."""
    return self.plan is not None and self.plan.one_segment

  @property
  def token_marks(self) -> Marks:
    """The marks of token ids by the setting `marks`; none are set before the task is bound, when programs are traced
    for shapes."""
    if not self.marks:
      return Marks()
    return marks_of(
      self.marks, self.tokenizer.tokenizer if isinstance(self.tokenizer, Fitted) else None
    )

  def token_weights(self, batch):
    """Returns the weights of all tokens; 0 for padding."""
    return present_tokens(batch)

  def row_tokens(self, batch: Mapping[str, jax.Array], ids: jax.Array | None = None) -> Tokens:
    """Returns the token metadata of a batch of documents: packed ones, or plain rows of one segment.

    Args:
      batch: the batch.
      ids: the ids that the model gets, [batch, length], which are marked; None: the tokens of the batch.
    """
    ids = batch['tokens'] if ids is None else ids
    segments, set_marks = None if self.one_segment else batch['segments'], self.token_marks
    marks = set_marks.of_rows(ids, segments) if set_marks.functions else {}
    if segments is None:
      encoded = batch['positions'] if 'positions' in self.plan.columns else None
      return Tokens.row(ids.shape[1], encoded=encoded, marks=marks)
    return Tokens(batch['positions'], segments, marks=marks, layout=RowLayout.PACKED)

  @property
  def objectives(self) -> Mapping[Text, Auxiliary]:
    """The auxiliary objectives by the name of their loss term."""
    return self.auxiliaries

  def planned(self, length: int) -> int:
    """Returns the number of tokens in a cached row; below `length` if segmentations are sampled."""
    return length if self.pieces is None else self.pieces.planned(length)

  def resegment(self, lengths: Mapping[str, int], train: bool) -> Callable[..., dict] | None:
    """Returns the transform that samples segmentations of cached rows; None without sampling.

    Args:
      lengths: column -> length of the returned row.
      train: False keeps the cached segmentation.
    """
    if self.pieces is None:
      return None
    return self.pieces.transform(self.fitted, lengths, train)

  def rows(self, split):
    """Returns rows from the token cache; without a plan, the examples of the source."""
    if self.plan is None:
      return super().rows(split)
    self.check_split(split)
    # Segmentations are sampled only in training, so other splits need no room for longer ones.
    task = self if split == self.train_split else dataclasses.replace(self, pieces=None)
    return token_rows(self.source, split, self.fitted, task.plan)

  def check_model(self, model):
    """Also raises UserError if the token embedding is smaller than the vocabulary, for an auxiliary objective, if no
    pattern of the model reads a mark, or if a block attends to later tokens."""
    super().check_model(model)
    if self.objectives:
      check_auxiliaries(self.objectives, self, model)
    if self.marks:
      check_marks(model, self.marks, type(self).__name__)
    if self.is_causal:
      length = self.spec(1)[self.target_segments].shape[1]
      check_causal(model, length, type(self).__name__, self.marks)
    size, tokens = model.spec.vocab_size, self.tokenizer.vocab_size
    if tokens is not None and (size is None or size < tokens):
      raise UserError(
        f'the token embedding of the model has {size} rows, but the tokenizer has {tokens} tokens: '
        f'set TokenEmbedding.vocab_size to at least {tokens}, or leave it out'
      )

  def note_rows(self, split, rows):
    """Returns a warning if more than one percent of the pairs of a split are dropped.

    Raises:
      UserError: more than `max_dropped` are.
    """
    if self.max_dropped is None:
      return ''
    return note_dropped(type(self).__name__, split, rows, self.plan.lengths, self.max_dropped)

  def target_weights(self, batch):
    """Returns weight 1 for each predicted token that is not padding."""
    return (batch[self.target_segments] != 0).astype(jnp.float32)

  def weights(self, batch):
    """Returns the weights of the loss terms, including those of the auxiliary objectives."""
    return super().weights(batch) | self.auxiliary_weights(batch)

  def auxiliary_weights(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the weights of the loss terms of the auxiliary objectives by name."""
    targets = self.weighted_targets(batch)
    return {
      name: auxiliary.term_weight(batch, targets) for name, auxiliary in self.objectives.items()
    }

  def with_auxiliaries(
    self,
    metrics: Sums,
    model: Any,
    out: Output,
    batch: Mapping[str, jax.Array],
    key: jax.Array | None,
  ) -> TaskOutput:
    """Returns the result of `sums`: the metrics of the task, and its auxiliary objectives.

    `out` is the output of the model for the rows of the batch, and `key` as in `sums`.
    """
    if not self.objectives:
      return TaskOutput(metrics, out.aux)
    return with_auxiliaries(self.objectives, self, metrics, model, out, batch, key)

  def summarise(self, means, info=None):
    """Returns the metrics with perplexity, if the loss is that of tokens, and with the numbers of pairs in rows and of
    dropped pairs, if pairs are dropped."""
    metrics = super().summarise(means, info)
    if self.has_perplexity:
      metrics['perplexity'] = math.exp(min(metrics['loss'], 700.0))
    return metrics if self.max_dropped is None else metrics | dropped_pairs(info)


def in_training(key: jax.Array | None, value: Tunable) -> Tunable:
  """Returns a coefficient of a loss, which is 0 in evaluation: without keys of the rows."""
  return 0.0 if key is None else value


def chained(*transforms: Transform | None) -> Transform | None:
  """Returns the transforms that are not None, one after another; None without any."""
  parts = tuple(transform for transform in transforms if transform is not None)
  return Chain(parts) if len(parts) > 1 else next(iter(parts), None)


def encoded_spec(batch_size: int, length: int, *by_token: str) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of tokens, types, segments and other columns: int32 [batch, length]."""
  names = ('tokens', 'types', 'segments', *by_token)
  return {name: jax.ShapeDtypeStruct((batch_size, length), jnp.int32) for name in names}


def hidden_of(
  model: TextModel,
  batch: Mapping[str, jax.Array],
  key: jax.Array | None,
  marks: Marks = Marks(),
) -> Output:
  """Returns a language model's hidden vectors of rows with one encoded example each.

  Types are passed only to models with type embeddings, and positions of the batch, if it has
  any, to position encodings.
  """
  ids, segments = batch['tokens'], batch['segments']
  fields = {'marks': marks.of_rows(ids, segments), 'encoded': batch.get('positions')}
  return model.hidden(
    ids,
    tokens=Tokens.row(ids.shape[1], segments=segments, right_padded=True, **fields),
    types=batch['types'] if model.spec.num_types else None,
    key=key,
  )


def pad_prompts(
  prompts: Sequence[Sequence[int]], pad_id: int, multiple: int = 32, longest: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """Pads prompts on the right to a common length.

  Args:
    prompts: token ids.
    pad_id: the id of padding.
    multiple: rounds the length up to a multiple, to limit the number of compilations.
    longest: maximum length, at least that of the longest prompt.

  Returns:
    The ids, int32 [batch, length], and the lengths of the prompts, int32 [batch].
  """
  lengths = np.array([len(prompt) for prompt in prompts], np.int32)
  width = -(-max(int(lengths.max()), 1) // multiple) * multiple
  width = min(width, longest or width)
  ids = np.full((len(prompts), width), pad_id, np.int32)
  for row, prompt in zip(ids, prompts, strict=True):
    row[: len(prompt)] = prompt
  return ids, lengths


def continued(
  model: DecodingModel | Placed,
  rows: Sequence[Sequence[int]],
  tokenizer: Tokenizer,
  *,
  seed: SampleSeed = 0,
  marks: Marks = Marks(),
  longest: int | None = None,
  **settings: Any,
) -> Generated:
  """Continues rows of token ids.

  Args:
    model: the language model.
    rows: ids of each prompt, at least one.
    tokenizer: the tokenizer, for its end and padding ids.
    seed: random seed of sampling.
    marks: marks of tokens that patterns of the model read.
    longest: maximum length of padded prompts.
    **settings: further arguments of `t2x.decode.generate`, such as `strategy` and `max_new_tokens`.
  """
  ids, lengths = pad_prompts(rows, tokenizer.pad_id, longest=longest)
  return generate(
    model,
    ids,
    lengths,
    eos_id=tokenizer.eos_id,
    pad_id=tokenizer.pad_id,
    key=prompt_keys(seed, len(ids)),
    marks=marks,
    **settings,
  )


def check_shapes(generate: Callable[[Any], Generated], model: nnx.Module) -> None:
  """Traces `generate(model)` with the shapes of a model, and raises its errors."""
  jax.eval_shape(lambda m: jax.tree.leaves(generate(m)), model)


def answers(generated: Generated, tokenizer: Tokenizer) -> list[list[dict[str, Any]]]:
  """Returns the sequences of each prompt as dicts with text, tokens, log_probs and score."""
  tokens, lengths = np.asarray(generated.tokens), np.asarray(generated.lengths)
  log_probs, scores = np.asarray(generated.log_probs), np.asarray(generated.scores)

  def answer(b, r):
    ids = tokens[b, r, : lengths[b, r]].tolist()
    text = tokenizer.decode([i for i in ids if i != tokenizer.eos_id])
    return {
      'text': text,
      'tokens': ids,
      'log_probs': [float(x) for x in log_probs[b, r, : lengths[b, r]]],
      'score': float(scores[b, r]),
    }

  return [[answer(b, r) for r in range(tokens.shape[1])] for b in range(tokens.shape[0])]
